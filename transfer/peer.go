package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

// Peer is another agent, as this one reaches it.
type Peer struct {
	agent *Agent
	addrs []string // that were dialled
	id    [16]byte // what tells its connections from those of others

	// Guarded by the agent's mutex.
	paths    []*path    // by device of the agent
	reached  acceptance // the latest; its epoch is zero before the first
	targets  []string   // at which it is dialled: those of its devices, if it has several, and addrs
	work     [levels]fifo.Queue[*subBatch]
	filling  *subBatch
	inbox    *RemoteSegment            // that notes go to
	segments map[string]*RemoteSegment // of this epoch, that were looked up
	closed   error                     // why it ended
	gone     chan struct{}             // closed when it has ended
}

// Dial connects to the agent that listens at HOST:PORT (with SRD, IP:PORT/QPN), or at several such addresses, of which
// one need answer. It tries for Config.DialTimeout with each device, also while nobody listens there; with SRD it fails at once if there is
// no such endpoint. It returns when one device of this agent is connected; the others follow when there is work for them.
// Each call makes a Peer with connections of its own.
//
// The error matches the cause of ctx, ErrInvalid, ErrClosed, ErrProtocol, or those of rdma.Connections.Dial.
func (a *Agent) Dial(ctx context.Context, addrs ...string) (*Peer, error) {
	fail := func(err error) (*Peer, error) {
		return nil, fmt.Errorf("dial the transfer agent at %s: %w", strings.Join(addrs, " and "), err)
	}
	if err := checkAddrs(addrs); err != nil {
		return fail(err)
	}
	addrs = slices.Clone(addrs)
	p := &Peer{agent: a, addrs: addrs, targets: addrs, segments: map[string]*RemoteSegment{}, gone: make(chan struct{})}
	p.inbox = &RemoteSegment{peer: p, name: "notes"}
	a.host.Random(p.id[:])
	a.mu.Lock()
	if err := a.closed; err != nil {
		a.mu.Unlock()
		return fail(err)
	}
	for _, d := range a.devices {
		p.paths = append(p.paths, &path{peer: p, dev: d, own: d})
	}
	a.peers = append(a.peers, p)
	a.mu.Unlock()
	if _, err := p.lookUp(ctx); err != nil {
		p.Close()
		return fail(err)
	}
	return p, nil
}

// Addrs are the addresses that were dialled.
func (p *Peer) Addrs() []string { return p.addrs }

// String returns these addresses.
func (p *Peer) String() string { return strings.Join(p.addrs, " and ") }

// Epoch is the epoch of the agent that a connection has last reached.
func (p *Peer) Epoch() uint64 {
	p.agent.mu.Lock()
	defer p.agent.mu.Unlock()
	return p.reached.Epoch
}

// Devices are the devices of this agent that are connected to the peer at present.
func (p *Peer) Devices() (connected []verbs.Device) {
	p.agent.mu.Lock()
	defer p.agent.mu.Unlock()
	for _, path := range p.paths {
		if path.state == pathReady && path.dev == path.own {
			connected = append(connected, path.dev.device)
		}
	}
	return connected
}

// Close ends the items that have not ended, with ErrClosed, and the connections. The errors of writes, atomics and
// notes that a device had also match ErrUnknown. Close returns when no device here touches memory for the peer.
// Segments of the peer cannot be used any more. Closing again only waits.
func (p *Peer) Close() {
	p.agent.mu.Lock()
	p.end(fmt.Errorf("%w: the peer at %s", ErrClosed, p))
	p.agent.mu.Unlock()
	<-p.gone
}

// end ends the peer. The lock is held, here and below.
func (p *Peer) end(err error) {
	if p.closed != nil {
		return
	}
	p.endWork(err)
	p.closed = err
	for _, path := range p.paths {
		path.close()
	}
	p.settle()
}

// settle ends a closed peer when all of its connections have.
func (p *Peer) settle() {
	if p.connecting() {
		return
	}
	for _, path := range p.paths {
		if path.pause != nil {
			path.pause.Stop()
		}
	}
	for _, s := range p.segments {
		s.retire()
	}
	p.agent.peers = slices.DeleteFunc(p.agent.peers, func(q *Peer) bool { return p == q })
	close(p.gone)
}

// endWork ends what waits for a connection to the peer.
func (p *Peer) endWork(err error) {
	for i := range p.work {
		for w := &p.work[i]; w.Len() > 0; {
			sub := w.Pop()
			sub.queued = false
			sub.drop(err)
		}
	}
	for _, path := range p.paths {
		path.endFenced(err)
	}
}

// enqueue puts a sub-batch in its place among the work for the peer.
func (p *Peer) enqueue(sub *subBatch) {
	if sub.queued {
		return
	}
	sub.queued = true
	p.work[sub.level].Push(sub)
	for _, path := range p.paths {
		path.activate()
	}
}

// connecting reports whether a device is connected, or about to be, or about to end a connection.
func (p *Peer) connecting() bool {
	return slices.ContainsFunc(p.paths, func(path *path) bool { return path.state != pathDown })
}

// connect begins to connect on the devices that are not connected. Until one is, only one tries, since the others
// learn from it at which address to dial; and those that had writes, which can go on only when the peer has
// confirmed their end. It reports whether a device is connected, or tries.
func (p *Peer) connect() bool {
	if p.closed != nil || p.agent.closed != nil {
		return false
	}
	ready, tries, fenced := false, false, false
	for _, path := range p.paths {
		ready = ready || path.state == pathReady
		if path.fenced != nil {
			path.dial()
			fenced = true
		} else {
			tries = tries || path.state != pathDown
		}
	}
	switch {
	case ready:
		for _, path := range p.paths {
			if path.own.dead == nil {
				path.dial()
			}
		}
	case !tries:
		best := slices.MinFunc(p.paths, func(path, m *path) int {
			return cmp.Compare(path.rank(), m.rank())
		})
		if best.gaveUp {
			return fenced
		}
		best.dial()
	}
	return true
}

// waiting reports whether work waits for a connection.
func (p *Peer) waiting() bool {
	return p.work[0].Len()+p.work[1].Len()+p.work[2].Len() > 0 || slices.ContainsFunc(p.paths, func(path *path) bool { return path.fenced != nil })
}

// lost notes that a device could not be connected to the peer, or is no longer.
func (p *Peer) lost(path *path, err error) {
	if p.closed != nil {
		p.settle()
		return
	}
	if path.gaveUp && (path.tries == 0 || path.tries >= len(p.paths)*len(p.targets)) {
		path.endFenced(err)
	}
	if p.waiting() {
		if p.connect() {
			return
		}
		p.endWork(fmt.Errorf("no connection: %w", err))
	}
	if !p.connecting() {
		for _, path := range p.paths {
			path.gaveUp, path.tries = false, 0 // the next work tries them once more
		}
	}
}

// found notes whom a connection has reached.
func (p *Peer) found(acc acceptance) {
	before := p.reached.Epoch
	p.reached = acc
	p.targets = p.addrs
	if n := int(acc.Devices); n > 1 {
		p.targets = nil
		for i := range n {
			p.targets = append(p.targets, acc.addr(i).String())
		}
		for _, addr := range p.addrs { // at which it may be opened again
			if !slices.Contains(p.targets, addr) {
				p.targets = append(p.targets, addr)
			}
		}
	}
	if before == acc.Epoch || before == 0 {
		return
	}
	p.agent.cfg.Log.Info().Stringer("peer", p).Msg("the peer was opened again; its segments have to be looked up again")
	for _, s := range p.segments {
		s.retire()
	}
	for _, path := range p.paths {
		if path.state == pathReady && path.acceptance.Epoch != acc.Epoch {
			path.close()
		}
	}
}

// RemoteSegment is memory that a peer publishes.
type RemoteSegment struct {
	peer  *Peer
	name  string
	size  int
	perm  mmap.Permission
	epoch uint64 // zero: the directory, of whom the next connection reaches
	keys  *[maxDevices]key

	// Guarded by the agent's mutex.
	maps  []remoteMap // by path of the peer
	stale bool
}

// remoteMap is a segment through one device here and one of the peer's. The Map owns nothing.
type remoteMap struct {
	dev *localDevice
	key key
	m   *mmap.Map
}

// Name is the name by which the peer publishes it.
func (s *RemoteSegment) Name() string { return s.name }

// Peer is whose it is.
func (s *RemoteSegment) Peer() *Peer { return s.peer }

// Epoch is the epoch of the agent that published it.
func (s *RemoteSegment) Epoch() uint64 { return s.epoch }

// Len is its size in bytes.
func (s *RemoteSegment) Len() int { return s.size }

// Permissions are what the peer allows.
func (s *RemoteSegment) Permissions() mmap.Permission { return s.perm }

// Stale reports whether the segment is known to have been replaced: see ErrStale.
func (s *RemoteSegment) Stale() bool {
	s.peer.agent.mu.Lock()
	defer s.peer.agent.mu.Unlock()
	return s.stale
}

// mapFor returns the memory as the device of a connection reaches it.
func (s *RemoteSegment) mapFor(path *path) (m *mmap.Map, err error) {
	k := path.acceptance.Directory
	if s.keys != nil {
		k = s.keys[path.acceptance.Device]
	} else if s.epoch == 0 {
		s.epoch = path.acceptance.Epoch
	}
	if s.epoch != path.acceptance.Epoch {
		return nil, ErrStale
	}
	at := &s.maps[path.own.index]
	if at.m == nil || at.dev != path.dev || at.key != k {
		if m, err = mmap.FromKey(path.dev.device, k.Addr, s.size, k.Key, s.perm); err != nil {
			return nil, err
		}
		*at = remoteMap{path.dev, k, m}
	}
	return at.m, nil
}

// retire makes a segment stale.
func (s *RemoteSegment) retire() {
	if s.peer.segments[s.name] == s {
		delete(s.peer.segments, s.name)
	}
	s.stale = true
}

// Segment looks up the segment of a name at the peer. It returns the same RemoteSegment as long as the memory is
// the same. The error matches ErrNoSegment, ErrClosed, ErrProtocol, the cause of ctx, or is that of connecting.
func (p *Peer) Segment(ctx context.Context, name string) (*RemoteSegment, error) {
	all, err := p.lookUp(ctx)
	if err == nil {
		if i := slices.IndexFunc(all, func(s *RemoteSegment) bool { return s.name == name }); i >= 0 {
			return all[i], nil
		}
		err = ErrNoSegment
	}
	return nil, fmt.Errorf("look up segment %q of the transfer agent at %v: %w", name, p, err)
}

// Segments looks up all segments that the peer publishes, in the order of their names. Errors are as with Segment.
// When ctx ends while a device reads, Segments returns when the device has ended.
func (p *Peer) Segments(ctx context.Context) ([]*RemoteSegment, error) {
	all, err := p.lookUp(ctx)
	if err != nil {
		err = fmt.Errorf("look up the segments of the transfer agent at %v: %w", p, err)
	}
	return all, err
}

func (p *Peer) lookUp(ctx context.Context) (segments []*RemoteSegment, err error) {
	size := headLen + 4*recordLen // the device may keep it for as long as the connection is idle
	for range 100 {
		if segments, err = p.read(ctx, &size); !errors.Is(err, errTorn) && !errors.Is(err, ErrStale) {
			break
		}
	}
	return segments, err
}

var errTorn = errors.New("changed while it was read")

// read reads the peer's directory. If that has more than size bytes, it sets size, and fails with errTorn.
func (p *Peer) read(ctx context.Context, size *int) (segments []*RemoteSegment, err error) {
	a := p.agent
	scratch, err := a.Register("", make([]byte, *size), mmap.LocalReadWrite)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, scratch.Close()) }()
	directory := &RemoteSegment{peer: p, name: "directory", size: directoryLen, perm: mmap.RemoteRead, maps: make([]remoteMap, len(p.paths))}
	b := Batch{Priority: Urgent}
	b.Read(directory, 0, scratch.mem)
	h, err := a.Submit(&b)
	if err != nil {
		return nil, err
	}
	if h.Wait(ctx); ctx.Err() != nil {
		err = context.Cause(ctx)
		if why := p.dialError(); why != nil {
			err = fmt.Errorf("%w: %w", err, why)
		}
		h.Cancel()
		<-h.done
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err = cmp.Or(err, h.items[0].err); err != nil {
		return nil, err
	}
	if directory.epoch != p.reached.Epoch {
		return nil, ErrStale // the peer was opened again since
	}
	records, need, err := readDirectory(scratch.mem, int(p.reached.Devices))
	if err == nil && records == nil {
		*size, err = need, errTorn
	}
	if err != nil {
		return nil, err
	}
	return p.adopt(records, directory.epoch), nil
}

// adopt makes segments of records, and retires those that are there no longer.
func (p *Peer) adopt(records []record, epoch uint64) []*RemoteSegment {
	segments := make([]*RemoteSegment, len(records))
	now := make(map[string]*RemoteSegment, len(records))
	for i := range records {
		r := &records[i]
		s := p.segments[r.name()]
		if s == nil || s.epoch != epoch || s.size != int(r.Size) || s.perm != mmap.Permission(r.Perm) || *s.keys != r.Keys {
			s = &RemoteSegment{peer: p, name: r.name(), size: int(r.Size), perm: mmap.Permission(r.Perm), epoch: epoch, keys: &r.Keys, maps: make([]remoteMap, len(p.paths))}
		}
		segments[i], now[s.name] = s, s
	}
	for name, s := range p.segments {
		if now[name] != s {
			s.retire()
		}
	}
	p.segments = now
	return segments
}

// dialError is why the latest try of a dial that goes on has failed.
func (p *Peer) dialError() (err error) {
	p.agent.mu.Lock()
	defer p.agent.mu.Unlock()
	for _, path := range p.paths {
		if path.state == pathDialing && path.conn != nil {
			err = cmp.Or(err, path.conn.DialError())
		}
	}
	return err
}
