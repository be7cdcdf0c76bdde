package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/errno"
)

const (
	packetBufferBytes     = 512 << 10
	packetBufferDatagrams = 1024
)

// packetBuffer holds received datagrams; their data are contiguous.
type packetBuffer struct {
	datagrams []Datagram
	data      []byte
}

func (b *packetBuffer) empty() { b.datagrams, b.data = b.datagrams[:0], b.data[:0] }

func (b *packetBuffer) hasRoom(n int) bool {
	return len(b.datagrams) < cap(b.datagrams) && len(b.data)+n <= cap(b.data)
}

// portable uses the standard library's UDP socket. Its goroutine reads into one bin while the
// receiver uses the other.
type portable struct {
	conn          *net.UDPConn
	sendConn      *net.UDPConn // the socket that packets leave by: conn, or a separate one
	receiveBuffer int
	zone          string
	done          chan struct{}

	// Used by the sender.
	lastDst netip.AddrPort
	lastTo  netip.AddrPort // lastDst with its zone

	set     *portableWaitSet
	ownsSet bool // close closes it

	mu         sync.Mutex
	bufferFree sync.Cond // the reader waits here for an empty bin
	filling    *packetBuffer
	reading    *packetBuffer // used by the receiver
	err        error
	full       bool // there is something to receive
	closed     bool
}

func openPortable(cfg Config, _ int) (backend, netip.AddrPort, error) {
	p := &portable{
		zone:    cfg.Interface,
		done:    make(chan struct{}),
		filling: newPacketBuffer(),
		reading: newPacketBuffer(),
	}
	p.bufferFree.L = &p.mu
	var err error
	switch set := cfg.WaitSet.(type) {
	case nil:
		p.set, p.ownsSet = newPortableWaitSet(), true
	case *portableWaitSet:
		p.set = set
	default:
		return nil, netip.AddrPort{}, fmt.Errorf("the wait set is not for portable sockets: %w", errors.ErrUnsupported)
	}
	if p.conn, err = p.listen(cfg, cfg.Addr); err != nil {
		return nil, netip.AddrPort{}, err
	}
	p.sendConn = p.conn
	if cfg.SendPorts != (PortRange{}) {
		if p.sendConn, err = p.listenSendSocket(cfg); err != nil {
			return nil, netip.AddrPort{}, errors.Join(err, p.conn.Close())
		}
	}
	if raw, err := p.conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { p.receiveBuffer = receiveBuffer(fd) })
	}
	go p.read()
	return p, plain(p.conn.LocalAddr().(*net.UDPAddr).AddrPort()), nil
}

func (p *portable) listen(cfg Config, at netip.AddrPort) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if e := c.Control(func(fd uintptr) { err = setOptions(fd, cfg) }); e != nil {
			return e
		}
		return err
	}}
	network := "udp4"
	if at.Addr().Is6() {
		network = "udp6"
	}
	c, err := lc.ListenPacket(context.Background(), network, p.scoped(at).String())
	if err != nil {
		return nil, errno.Named(err)
	}
	conn := c.(*net.UDPConn)
	// If the system refuses a size, its default works as well.
	_ = conn.SetReadBuffer(cfg.ReceiveBuffer)
	_ = conn.SetWriteBuffer(cfg.SendBuffer)
	return conn, nil
}

// listenSendSocket opens the socket that packets leave by, at the address of the other one: the
// standard library cannot choose the source address of a packet.
func (p *portable) listenSendSocket(cfg Config) (*net.UDPConn, error) {
	r := cfg.SendPorts
	n := int(r.Last-r.First) + 1
	first := rand.IntN(n)
	for i := range n {
		port := r.First + uint16((first+i)%n)
		conn, err := p.listen(cfg, netip.AddrPortFrom(cfg.Addr.Addr(), port))
		// Windows reserves ranges of ports (EACCES).
		if !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EACCES) {
			return conn, err
		}
	}
	return nil, errNoSendPort(r)
}

func (p *portable) sendPort() uint16 { return p.sendConn.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

func newPacketBuffer() *packetBuffer {
	return &packetBuffer{datagrams: make([]Datagram, 0, packetBufferDatagrams), data: make([]byte, 0, packetBufferBytes)}
}

// plain strips the zone and the IPv4-in-IPv6 mapping.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

func (p *portable) scoped(a netip.AddrPort) netip.AddrPort {
	if p.zone == "" || !a.Addr().Is6() || !a.Addr().IsLinkLocalUnicast() {
		return a
	}
	return netip.AddrPortFrom(a.Addr().WithZone(p.zone), a.Port())
}

func (p *portable) features() Features {
	return Features{MaxSegments: 1, ReceiveBuffer: p.receiveBuffer}
}

func (p *portable) receiveHeaders(on bool) error {
	if on {
		return fmt.Errorf("link: read IP headers on a portable socket: %w", errors.ErrUnsupported)
	}
	return nil
}

func (p *portable) join(netip.AddrPort) error {
	return fmt.Errorf("multicast on a portable socket: %w", errors.ErrUnsupported)
}

func (p *portable) checkRoute(netip.AddrPort) error { return nil }

func (p *portable) leave(netip.AddrPort) error { return nil }

func (p *portable) unreachable() []Refusal { return nil }

func (p *portable) waitSet() WaitSet { return p.set }

// ended implements backend: to look costs no system call.
func (p *portable) ended() bool { return true }

func (p *portable) endsWait(bool) {}

func (p *portable) setFilter(*Filter) error { return errors.ErrUnsupported }

func (p *portable) dropped() uint64 { return 0 }

func (p *portable) read() {
	defer close(p.done)
	buf := make([]byte, 1<<16)
	for {
		n, src, err := p.conn.ReadFromUDPAddrPort(buf)
		err = errno.Named(err)
		switch {
		case err == nil:
			if !p.put(buf[:n], plain(src)) {
				return
			}
		case errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
			// The response to a packet that was sent to a closed port. The transport notices
			// by itself, later.
		default:
			if !p.putError(err) {
				return
			}
		}
	}
}

// put queues a datagram, and waits for room. It reports false after close.
func (p *portable) put(data []byte, src netip.AddrPort) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.closed && !p.filling.hasRoom(len(data)) {
		p.bufferFree.Wait()
	}
	b, at := p.filling, len(p.filling.data)
	b.data = append(b.data, data...)
	b.datagrams = append(b.datagrams, Datagram{Src: src, Data: b.data[at:len(b.data):len(b.data)]})
	p.setFull(!p.closed)
	return !p.closed
}

// putError hands an error to the receiver and waits until it has been received, so that a
// lasting error does not spin.
func (p *portable) putError(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
	p.setFull(true)
	for !p.closed && p.err != nil {
		p.bufferFree.Wait()
	}
	return !p.closed
}

// setFull notes whether there is something to receive. The lock is held.
func (p *portable) setFull(full bool) {
	switch {
	case full && !p.full:
		p.set.add(1)
	case !full && p.full:
		p.set.add(-1)
	}
	p.full = full
}

func (p *portable) receive() ([]Datagram, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, net.ErrClosed
	}
	p.reading.empty()
	p.reading, p.filling = p.filling, p.reading
	err := p.err
	p.err = nil
	p.setFull(false)
	p.bufferFree.Signal()
	if err != nil {
		err = fmt.Errorf("link: receive: %w", err)
	}
	return p.reading.datagrams, err
}

func (p *portable) send(b *batch) {
	for i := range b.messageCount {
		m := &b.messages[i]
		if m.dst != p.lastDst {
			p.lastDst, p.lastTo = m.dst, p.scoped(m.dst)
		}
		err := p.write(b.data(m))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// This goroutine may have been delayed, and the socket have room.
			err = p.write(b.data(m))
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			b.drop(i)
			return
		case errors.Is(err, net.ErrClosed):
			b.drop(i)
			b.fail(net.ErrClosed)
			return
		default:
			b.dropped++
			if !errors.Is(err, syscall.ENOBUFS) {
				b.fail(fmt.Errorf("link: send %d bytes to %s: %w", m.size, m.dst, err))
			}
		}
	}
}

// write sends a packet to lastTo. It waits for room for a limited time.
func (p *portable) write(packet []byte) error {
	_ = p.sendConn.SetWriteDeadline(time.Now().Add(sendTimeout))
	_, err := p.sendConn.WriteToUDPAddrPort(packet, p.lastTo)
	return errno.Named(err)
}

func (p *portable) close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		<-p.done
		return nil
	}
	p.closed = true
	p.setFull(false)
	p.bufferFree.Signal()
	p.mu.Unlock()
	if p.ownsSet {
		_ = p.set.Close()
	}
	err := p.conn.Close()
	if p.sendConn != p.conn {
		err = errors.Join(err, p.sendConn.Close())
	}
	<-p.done
	return err
}

func (p *portable) share(WaitSet, int) (backend, error) { return nil, errors.ErrUnsupported }

func (p *portable) steer([]int) error { return errors.ErrUnsupported }
