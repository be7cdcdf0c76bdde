package local

// Budget bounds what a device maps of its peers. The mappings (vm.max_map_count) and the
// address space of a process are limited, and no peer may use them up. Page tables take 1/512
// of the size that is mapped, and a peer can export memory many times that it allocated once.
// The bound on its number of memories keeps the page tables in proportion to what it has
// allocated.
type Budget struct {
	usage
	peers map[int]*usage // by process ID
}

// usage is the number and the total size of mappings.
type usage struct {
	memories int
	bytes    uint64
}

const (
	maxImports     = 8 << 10
	maxImportBytes = 16 << 40
	// Of one process, which may have several devices and channels.
	maxPeerImports     = 4 * maxExports
	maxPeerImportBytes = maxImportBytes / 4
)

// reserve reserves a mapping of n bytes of a process, and reports false if the budget is
// exhausted.
func (b *Budget) reserve(peer int, n uint64) bool {
	p := b.peers[peer]
	if p == nil {
		p = new(usage)
	}
	if !b.fits(n, maxImports, maxImportBytes) || !p.fits(n, maxPeerImports, maxPeerImportBytes) {
		return false
	}
	if b.peers == nil {
		b.peers = make(map[int]*usage)
	}
	b.peers[peer] = p
	b.add(1, n)
	p.add(1, n)
	return true
}

// release returns what was reserved for a mapping.
func (b *Budget) release(peer int, n uint64) {
	p := b.peers[peer]
	b.add(-1, -n)
	p.add(-1, -n)
	if p.memories == 0 {
		delete(b.peers, peer)
	}
}

func (u *usage) fits(n uint64, memories int, bytes uint64) bool {
	return u.memories < memories && n <= bytes-u.bytes
}

func (u *usage) add(memories int, bytes uint64) {
	u.memories += memories
	u.bytes += bytes
}
