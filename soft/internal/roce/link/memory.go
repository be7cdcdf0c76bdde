package link

import (
	"errors"
	"net/netip"
	"time"
)

// Port is the place of a [Socket] in a network in memory. Its methods may be called from any
// goroutine.
type Port interface {
	// Send sends a packet. The data belong to the caller again when it returns.
	Send(to netip.AddrPort, h Header, packet []byte)
	// Receive returns the packets that have arrived; they are valid until the next call.
	Receive() []Datagram
	Join(group netip.AddrPort) error
	Leave(group netip.AddrPort)
	CheckRoute(to netip.AddrPort) error
	Unreachable() []Refusal
	Interrupt()
	SetDeadline(t time.Time)
	// Dropped is the number of packets that found no room.
	Dropped() uint64
	Close()
}

// NewSocket returns a socket in a network in memory. It has no Wait: the network calls the
// receiver. source is what receivers see as the source of its packets, and buffer the size of
// its receive buffer, in bytes.
func NewSocket(addr, source netip.AddrPort, buffer int, p Port) *Socket {
	s := &Socket{io: memory{port: p, source: source.Port(), buffer: buffer}, addr: addr, source: source}
	s.batch.initSmall(addr.Addr().Is4())
	return s
}

// memory is the backend for a Port.
type memory struct {
	port   Port
	source uint16
	buffer int
}

func (m memory) send(b *batch) {
	for i := range b.messageCount {
		msg := &b.messages[i]
		m.port.Send(msg.dst, msg.header, b.data(msg))
	}
}

func (m memory) receive() ([]Datagram, error)        { return m.port.Receive(), nil }
func (m memory) receiveHeaders(bool) error           { return nil }
func (m memory) join(group netip.AddrPort) error     { return m.port.Join(group) }
func (m memory) checkRoute(to netip.AddrPort) error  { return m.port.CheckRoute(to) }
func (m memory) unreachable() []Refusal              { return m.port.Unreachable() }
func (m memory) dropped() uint64                     { return m.port.Dropped() }
func (m memory) sendPort() uint16                    { return m.source }
func (m memory) steer([]int) error                   { return errors.ErrUnsupported }
func (m memory) share(WaitSet, int) (backend, error) { return nil, errors.ErrUnsupported }
func (m memory) ended() bool                         { return true }
func (m memory) endsWait(bool)                       {}
func (m memory) waitSet() WaitSet                    { return m }

// setFilter does nothing: a filter saves the receiver work, and is no protection.
func (m memory) setFilter(*Filter) error { return nil }

func (m memory) leave(group netip.AddrPort) error {
	m.port.Leave(group)
	return nil
}

// Wait and Poll implement WaitSet: they fail, since the network calls the receiver.
func (m memory) Wait(time.Time) error    { return errors.ErrUnsupported }
func (m memory) Poll() error             { return errors.ErrUnsupported }
func (m memory) Interrupt()              { m.port.Interrupt() }
func (m memory) ClearInterrupt()         {}
func (m memory) SetDeadline(t time.Time) { m.port.SetDeadline(t) }
func (m memory) Watch(int, func()) error { return errors.ErrUnsupported }
func (m memory) Unwatch(int)             {}
func (m memory) Close() error            { return nil }

func (m memory) close() error {
	m.port.Close()
	return nil
}

func (m memory) features() Features {
	return Features{Groups: true, MaxSegments: 1, ReceiveBuffer: m.buffer}
}
