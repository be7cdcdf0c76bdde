package attack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/roce/local"
)

// Of the protocol of package local, which takes no process that an attacker could be.
const (
	neighbourName     = "@verbena/local/"
	neighbourGreeting = "verbena local 4"
	ringLen           = 4096 + 1<<20
	firstRecord       = 4096 // in a ring
)

// neighbour is the attacker's end of shared memory with a victim's device.
type neighbour struct {
	conn   *net.UnixConn
	memory []byte // the ring of the attacker's records, and that of the victim's
}

func localName(a local.Address) *net.UnixAddr {
	return &net.UnixAddr{Name: neighbourName + a.String(), Net: "unixpacket"}
}

// shardOf is where the shard of a queue pair is found.
func shardOf(device netip.AddrPort, qpn uint32) local.Address {
	return local.Address{Device: device, Shard: int(qpn & 15)}
}

// own takes the name of a device, and answers nobody.
func own(a local.Address) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unixpacket", localName(a))
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	return l, nil
}

// join joins the shared memory of a device in the name of another.
func join(from, to local.Address) (*neighbour, error) {
	conn, err := net.DialUnix("unixpacket", nil, localName(to))
	if err != nil {
		return nil, err
	}
	n := &neighbour{conn: conn}
	if err := n.greet(from, to); err != nil {
		n.leave()
		return nil, err
	}
	go n.answer()
	return n, nil
}

func (n *neighbour) greet(from, to local.Address) error {
	fd, err := unix.MemfdCreate("rings", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Ftruncate(fd, 2*ringLen); err != nil {
		return err
	}
	if n.memory, err = unix.Mmap(fd, 0, 2*ringLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return err
	}
	_ = n.conn.SetDeadline(time.Now().Add(patience))
	if _, _, err = n.conn.WriteMsgUnix(fmt.Appendf(nil, "%s %v %v", neighbourGreeting, from, to), unix.UnixRights(fd), nil); err != nil {
		return err
	}
	b := make([]byte, 256)
	m, err := n.conn.Read(b)
	if err == nil && string(b[:m]) != "taken" {
		err = errors.New(string(b[:m]))
	}
	return err
}

// answer says that the attacker is there, as often as the victim asks.
func (n *neighbour) answer() {
	b := make([]byte, 256)
	for {
		m, err := n.conn.Read(b)
		if err != nil || m == 0 {
			return
		}
		if b[0] == 'p' {
			b[0] = 'q'
			_, _ = n.conn.Write(b[:m])
		}
	}
}

// heard reports whether the victim has sent a packet.
func (n *neighbour) heard() bool {
	return binary.NativeEndian.Uint64(n.memory[ringLen+firstRecord:]) != 0
}

func (n *neighbour) leave() {
	_ = n.conn.Close()
	if n.memory != nil {
		_ = unix.Munmap(n.memory)
	}
}

// impersonate joins the device of the right busy end in the name of its peer, until that sends
// packets to the attacker.
func impersonate(a *attacker) error {
	left, right := &a.ends[busy], &a.ends[2+busy]
	from, to := shardOf(left.Addr, left.QPN), shardOf(right.Addr, right.QPN)
	name, err := own(from)
	if err != nil {
		return err
	}
	defer func() { _ = name.Close() }()
	for !a.stopped() {
		a.others++
		n, err := join(from, to)
		for err == nil && !a.stopped() {
			if n.heard() {
				a.achieved(impersonated, "%v sent a packet for %v to another process", to, from)
				break
			}
			time.Sleep(time.Millisecond)
		}
		if err == nil {
			n.leave()
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}
