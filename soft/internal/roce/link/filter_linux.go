package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets for a socket filter. It sees the UDP header and what follows, and the IP header at
// offsets below zero (SKF_NET_OFF in linux/filter.h).
const (
	portOffset    = 0
	opcodeOffset  = 8
	destQPOffset  = 8 + 4 // with the reserved byte before it
	netOffset     = 0xfff00000
	source4Offset = netOffset + 12
	source6Offset = netOffset + 8
	serviceBits   = 0xe0 // of an opcode
)

const (
	bpfLoad       = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	bpfLoadHalf   = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
	bpfLoadByte   = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
	bpfLoadMemory = unix.BPF_LD | unix.BPF_MEM
	bpfStore      = unix.BPF_ST
	bpfAnd        = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	bpfEqual      = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	bpfReturn     = unix.BPF_RET | unix.BPF_K

	bpfPass, bpfDrop = 0xffffffff, 0
)

// Places of a packet's fields in the filter's scratch memory.
const (
	fieldQP = iota
	fieldService
	fieldPort
	fieldAddress // one word of IPv4, four of IPv6
)

// condition: a field has a value.
type condition struct{ field, value uint32 }

// filterProgram is a chain of entries. The first entry whose conditions all hold decides. Each
// entry ends in its verdict, so that jumps, whose offsets have eight bits, lead only to the
// next entry.
type filterProgram []unix.SockFilter

func (p *filterProgram) add(code uint16, k uint32) {
	*p = append(*p, unix.SockFilter{Code: code, K: k})
}

// keep stores a field in the scratch memory. A packet that is too short for it is dropped.
func (p *filterProgram) keep(field uint32, code uint16, offset, mask uint32) {
	p.add(code, offset)
	if mask != 0 {
		p.add(bpfAnd, mask)
	}
	p.add(bpfStore, field)
}

func (p *filterProgram) entry(verdict uint32, conditions ...condition) {
	for i, c := range conditions {
		p.add(bpfLoadMemory, c.field)
		rest := 2*(len(conditions)-1-i) + 1
		*p = append(*p, unix.SockFilter{Code: bpfEqual, Jf: uint8(rest), K: c.value})
	}
	p.add(bpfReturn, verdict)
}

// program returns the filter's program for sockets of one address family.
func (f *Filter) program(v4 bool) []unix.SockFilter {
	var p filterProgram
	p.keep(fieldQP, bpfLoad, destQPOffset, 1<<24-1)
	p.keep(fieldService, bpfLoadByte, opcodeOffset, serviceBits)
	p.keep(fieldPort, bpfLoadHalf, portOffset, 0)
	if v4 {
		p.keep(fieldAddress, bpfLoad, source4Offset, 0)
	} else {
		for i := range uint32(4) {
			p.keep(fieldAddress+i, bpfLoad, source6Offset+4*i, 0)
		}
	}
	for _, a := range f.Ignored {
		if a.Is4() == v4 {
			words := addressIs(a)
			p.entry(bpfDrop, append(words[:min(len(words), 2)], condition{fieldQP, f.IgnoredQPN})...)
		}
	}
	if !f.Restrict {
		p.add(bpfReturn, bpfPass)
		return p
	}
	for _, qpn := range f.Open {
		p.entry(bpfPass, condition{fieldQP, qpn})
	}
	if f.OpenService != 0 {
		p.entry(bpfPass, condition{fieldService, uint32(f.OpenService)})
	}
	for _, a := range f.Admitted {
		if a.Addr().Is4() != v4 {
			continue
		}
		conditions := addressIs(a.Addr())
		slices.Reverse(conditions) // most addresses differ at their end
		if a.Port() != 0 {
			conditions = append(conditions, condition{fieldPort, uint32(a.Port())})
		}
		p.entry(bpfPass, conditions...)
	}
	p.add(bpfReturn, bpfDrop)
	return p
}

// addressIs returns the conditions for packets from an address.
func addressIs(a netip.Addr) (words []condition) {
	for b := a.AsSlice(); len(b) > 0; b = b[4:] {
		words = append(words, condition{fieldAddress + uint32(len(words)), binary.BigEndian.Uint32(b)})
	}
	return words
}

func (k *kernel) setFilter(f *Filter) (err error) {
	if k.raw.Control(func(uintptr) {
		err = k.receivers(func(sock int) error { return f.attach(sock, k.v4) })
	}) != nil {
		return net.ErrClosed
	}
	return err
}

func (f *Filter) attach(sock int, v4 bool) error {
	if f.empty() {
		return detachFilter(sock)
	}
	program := f.program(v4)
	attach := func() error {
		return unix.SetsockoptSockFprog(sock, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	}
	err := attach()
	if err == nil {
		return nil
	}
	// The previous filter must not stay. The system counted both against its limit
	// (optmem_max).
	if err := detachFilter(sock); err != nil {
		return err
	}
	if errors.Is(err, unix.ENOMEM) {
		err = attach()
	}
	if err != nil {
		return fmt.Errorf("attach a program of %d instructions: %w", len(program), err)
	}
	return nil
}

func detachFilter(sock int) error {
	err := unix.SetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("detach: %w", err)
	}
	return nil
}

// dropCount counts packets that the system has dropped at a socket.
type dropCount struct {
	mu    sync.Mutex
	last  uint32 // the system's last count, which wraps
	total uint64
}

// Indices into what SO_MEMINFO returns (linux/sock_diag.h).
const (
	memoryInfoDrops = 8
	memoryInfoWords = 9
)

func (k *kernel) dropped() (total uint64) {
	_ = k.raw.Control(func(uintptr) {
		k.drops.look(k.sock)
		if k.second != nil {
			k.second.drops.look(k.second.sock)
		}
	})
	if k.second != nil {
		total = k.second.drops.sum()
	}
	return total + k.drops.sum()
}

// begin leaves out what the system has dropped so far.
func (c *dropCount) begin(sock int) {
	c.look(sock)
	c.total = 0
}

func (c *dropCount) sum() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}

// look adds what the system has dropped since the last call.
func (c *dropCount) look(sock int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var info [memoryInfoWords]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(sock), unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno == 0 && uintptr(size) >= unsafe.Sizeof(info) {
		c.note(info[memoryInfoDrops])
	}
}

func (c *dropCount) note(now uint32) {
	c.total += uint64(now - c.last)
	c.last = now
}
