package link

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Where a socket filter finds things: it is given the UDP header and what follows, and the
// IP header by offsets below zero (SKF_NET_OFF in linux/filter.h).
const (
	destQPOffset = 8 + 4 // with the reserved byte before it
	netOffset    = 0xfff00000
	sourceOffset = netOffset + 12 // of IPv4
	prefixOffset = netOffset + 8  // of IPv6: the source's upper half
)

const (
	bpfLoad   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	bpfAnd    = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	bpfEqual  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	bpfReturn = unix.BPF_RET | unix.BPF_K

	bpfPass, bpfDrop = 0xffffffff, 0
)

// filter is the program of a filter that drops packets of the sources to a queue pair.
func filter(qpn uint32, sources []netip.Addr) []unix.SockFilter {
	var match []unix.SockFilter
	for i, a := range sources {
		left := len(sources) - i - 1 // whose instructions, and then one that passes, come before the one that drops
		if a.Is4() {
			if i == 0 {
				match = append(match, unix.SockFilter{Code: bpfLoad, K: sourceOffset})
			}
			b := a.As4()
			match = append(match, unix.SockFilter{Code: bpfEqual, Jt: uint8(left + 1), K: binary.BigEndian.Uint32(b[:])})
			continue
		}
		b := a.As16()
		match = append(match,
			unix.SockFilter{Code: bpfLoad, K: prefixOffset},
			unix.SockFilter{Code: bpfEqual, Jf: 2, K: binary.BigEndian.Uint32(b[:])},
			unix.SockFilter{Code: bpfLoad, K: prefixOffset + 4},
			unix.SockFilter{Code: bpfEqual, Jt: uint8(4*left + 1), K: binary.BigEndian.Uint32(b[4:])},
		)
	}
	program := []unix.SockFilter{
		{Code: bpfLoad, K: destQPOffset},
		{Code: bpfAnd, K: 1<<24 - 1},
		{Code: bpfEqual, Jf: uint8(len(match)), K: qpn},
	}
	program = append(program, match...)
	return append(program, unix.SockFilter{Code: bpfReturn, K: bpfPass}, unix.SockFilter{Code: bpfReturn, K: bpfDrop})
}

func (k *kernel) ignore(qpn uint32, sources []netip.Addr) (err error) {
	control := k.raw.Control(func(uintptr) {
		if len(sources) == 0 {
			err = unix.SetsockoptInt(k.sock, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
			return
		}
		program := filter(qpn, sources)
		err = unix.SetsockoptSockFprog(k.sock, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	})
	if control != nil {
		return control
	}
	if err != nil {
		return fmt.Errorf("link: socket filter: %w", err)
	}
	return nil
}
