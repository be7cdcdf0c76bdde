package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// share opens another socket at the same address. The first one was bound without
// SO_REUSEPORT, so that binding failed if the address was in use. From now on both have the
// option, which the system requires to choose between them.
func (k *kernel) share(set WaitSet, bound int) (other backend, err error) {
	if k.raw.Control(func(uintptr) {
		if err = setReusePort(k.sock); err == nil {
			other, err = k.bindAnother(set, bound)
		} else {
			closeBound(bound)
		}
	}) != nil {
		closeBound(bound)
		return nil, net.ErrClosed
	}
	return other, err
}

func (k *kernel) bindAnother(set WaitSet, bound int) (backend, error) {
	cfg := k.cfg
	cfg.share, cfg.WaitSet, cfg.Bound = k, set, bound
	io, _, err := openKernel(cfg, int(k.index))
	return io, err
}

func setReusePort(sock int) error {
	if err := unix.SetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return fmt.Errorf("set SO_REUSEPORT: %w", err)
	}
	return nil
}

// Bind opens a socket for Config.Bound, at an address that no other socket has. Packets to it are dropped
// until it is used. The zone of a link-local address is the index of its interface.
func Bind(cfg Config) (sock int, err error) { return bindSocket(cfg, false) }

// BindAnother opens a socket for Config.Bound at the address of others, which must have been the first
// one's alone or opened by BindAnother. [SteerBound] has to know of it at once.
func BindAnother(cfg Config, first int) (sock int, err error) {
	if err := setReusePort(first); err != nil {
		return 0, err
	}
	return bindSocket(cfg, true)
}

func bindSocket(cfg Config, another bool) (sock int, err error) {
	if sock, err = newSocketUDP(cfg); err != nil {
		return 0, err
	}
	err = Refuse(sock) // prepareBound sets the rest
	if cfg.Addr.Addr().Is6() && err == nil {
		err = os.NewSyscallError("setsockopt IPV6_V6ONLY", unix.SetsockoptInt(sock, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1))
	}
	if another && err == nil {
		err = setReusePort(sock)
	}
	if err == nil {
		zone, _ := strconv.Atoi(cfg.Addr.Addr().Zone())
		err = bind(sock, cfg.Addr, uint32(zone))
	}
	if err != nil {
		_ = unix.Close(sock)
	}
	return sock, err
}

// SteerBound steers packets among the sockets of an address, which have the slots from 0 on. The slot rest
// gets those to other slots than these, and to queue pairs 0 and 1. The program of first comes before all
// that. It sees what follows the UDP header, and returns a slot or goes on.
func SteerBound(sock int, slots []int, rest int, first []unix.SockFilter) error {
	sockets := make(map[int]int)
	for _, slot := range slots {
		sockets[slot] = slot
	}
	return steer(sock, append(first, steering(sockets, rest)...))
}

// Refuse makes the system drop all packets to a socket of Bind, until it is used.
func Refuse(sock int) error {
	drop := []unix.SockFilter{{Code: bpfReturn, K: bpfDrop}}
	err := unix.SetsockoptSockFprog(sock, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]})
	return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", err)
}

// StopCoalescing makes packets arrive singly at a socket of Bind that is in use.
func StopCoalescing(sock int) { _ = unix.SetsockoptInt(sock, unix.SOL_UDP, unix.UDP_GRO, 0) }

// CheckBound returns an error if a file is no UDP socket at that address, whose zone is as for Bind.
func CheckBound(sock int, addr netip.AddrPort) error {
	at, err := boundAddr(sock)
	if err != nil {
		return err
	}
	protocol, err := unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err == nil && (at != addr || protocol != unix.IPPROTO_UDP) {
		err = fmt.Errorf("the socket is of protocol %d at %v", protocol, at)
	}
	return err
}

func closeBound(sock int) {
	if sock != 0 {
		_ = unix.Close(sock)
	}
}

// prepareBound undoes what a former user of the socket, perhaps another process, has set, and drops the
// packets to it that are left.
func prepareBound(sock int, cfg Config) error {
	v4 := cfg.Addr.Addr().Is4()
	if err := errors.Join(setOptions(uintptr(sock), cfg), Refuse(sock), receiveHeaders(sock, v4, false)); err != nil {
		return err
	}
	StopCoalescing(sock)
	var b [1]byte
	for range 1 << 16 { // more than a buffer holds
		if _, _, err := unix.Recvfrom(sock, b[:], unix.MSG_DONTWAIT); err == unix.EAGAIN {
			break
		}
	}
	return detachFilter(sock)
}

// secondSocket is a socket at another port, which a kernel socket receives from as well.
type secondSocket struct {
	sock  int
	port  uint16
	turn  bool // the last packets were looked for at the other socket
	drops dropCount
}

// ReceiveFrom makes the socket receive from a socket of Bind, too, and close it in the end, also after
// an error. It is called before the socket is used.
func (s *Socket) ReceiveFrom(bound int) (err error) {
	k, ok := s.io.(*kernel)
	if !ok {
		closeBound(bound)
		return fmt.Errorf("link: receive at two ports: %w", errors.ErrUnsupported)
	}
	if err = k.receiveFrom(bound); err != nil {
		_ = unix.Close(bound)
		return fmt.Errorf("link: receive at another port than UDP %s, too: %w", s.addr, err)
	}
	return nil
}

func (k *kernel) receiveFrom(bound int) error {
	addr, err := boundAddr(bound)
	if err != nil {
		return err
	}
	cfg := k.cfg
	cfg.Addr = addr
	if err := prepareBound(bound, cfg); err != nil {
		return err
	}
	if k.coalescing {
		_ = unix.SetsockoptInt(bound, unix.SOL_UDP, unix.UDP_GRO, 1)
	}
	x := &secondSocket{sock: bound, port: addr.Port()}
	x.drops.begin(bound)
	if err := k.set.add(&setMember{fd: bound, socket: k, ready: k.ready}, 0); err != nil {
		return err
	}
	k.second = x
	return nil
}

// receive returns what is queued at one of the two sockets. They begin in turn.
func (x *secondSocket) receive(k *kernel) (list []Datagram, err error) {
	for try := 0; try < 2 && len(list) == 0 && err == nil; try++ {
		if x.turn = !x.turn; x.turn {
			list, err = k.rx.receive(k.rx.datagrams[:0], k.sock)
			continue
		}
		list, err = k.rx.receive(k.rx.datagrams[:0], x.sock)
		for i := range list {
			list[i].Port = x.port
		}
	}
	return list, err
}

// receivers calls f for each of the sockets that packets to the address come to.
func (k *kernel) receivers(f func(sock int) error) error {
	err := f(k.sock)
	if k.second != nil {
		err = errors.Join(err, f(k.second.sock))
	}
	return err
}

// steer attaches the program that chooses. The program sees what follows the UDP header.
func (k *kernel) steer(slots []int) (err error) {
	sockets := make(map[int]int)
	for i, slot := range slots {
		sockets[slot] = i
	}
	if k.raw.Control(func(uintptr) { err = steer(k.sock, steering(sockets, 0)) }) != nil {
		return net.ErrClosed
	}
	return err
}

func steer(sock int, program []unix.SockFilter) error {
	return unix.SetsockoptSockFprog(sock, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

const (
	steeringOffset  = 4 // of the destination queue pair number, with the reserved byte before it
	bpfGreaterEqual = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
)

// steering returns the program that returns the index of a packet's socket, from those of the slots; rest: that
// of other packets.
func steering(sockets map[int]int, rest int) []unix.SockFilter {
	program := []unix.SockFilter{
		{Code: bpfLoad, K: steeringOffset},
		{Code: bpfAnd, K: 1<<24 - 1},
		{Code: bpfGreaterEqual, Jt: 1, K: 2},
		{Code: bpfReturn, K: uint32(rest)},
		{Code: bpfAnd, K: Slots - 1},
	}
	for slot, i := range sockets {
		program = append(program, unix.SockFilter{Code: bpfEqual, Jf: 1, K: uint32(slot)}, unix.SockFilter{Code: bpfReturn, K: uint32(i)})
	}
	return append(program, unix.SockFilter{Code: bpfReturn, K: uint32(rest)})
}
