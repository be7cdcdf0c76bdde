package link

import (
	"net"

	"golang.org/x/sys/unix"
)

// share opens another socket at the same address. The first one was bound without
// SO_REUSEPORT, so that binding failed if the address was in use. From now on both have the
// option, which the system requires to choose between them.
func (k *kernel) share(set WaitSet) (other backend, err error) {
	if k.raw.Control(func(uintptr) {
		if err = unix.SetsockoptInt(k.sock, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err == nil {
			other, err = k.bindAnother(set)
		}
	}) != nil {
		return nil, net.ErrClosed
	}
	return other, err
}

func (k *kernel) bindAnother(set WaitSet) (backend, error) {
	cfg := k.cfg
	cfg.share, cfg.WaitSet = k, set
	io, _, err := openKernel(cfg, int(k.index))
	return io, err
}

// steer attaches the program that chooses. The program sees what follows the UDP header.
func (k *kernel) steer(sockets, mask int) (err error) {
	program := steering(sockets, mask)
	if k.raw.Control(func(uintptr) {
		err = unix.SetsockoptSockFprog(k.sock, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	}) != nil {
		return net.ErrClosed
	}
	return err
}

const (
	steeringOffset  = 4 // of the destination queue pair number, with the reserved byte before it
	bpfGreaterEqual = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	bpfReturnA      = unix.BPF_RET | unix.BPF_A
)

// steering returns the program that returns the index of a packet's socket.
func steering(sockets, mask int) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: bpfLoad, K: steeringOffset},
		{Code: bpfAnd, K: 1<<24 - 1},
		{Code: bpfGreaterEqual, Jf: 3, K: 2},
		{Code: bpfAnd, K: uint32(mask)},
		{Code: bpfGreaterEqual, Jt: 1, K: uint32(sockets)},
		{Code: bpfReturnA},
		{Code: bpfReturn, K: 0},
	}
}
