package transfer

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// The handshake of SRD goes by messages, in their immediate data. They can overtake each other, and be lost when a host
// or network fails: so the end that dials repeats its request, each time with another number.
const (
	kindRequest = iota + 1 // to connect
	kindAccept             // the answer; again, it asks whether that end still has the link
	kindBusy               // the answer of an agent that has no place: the request has to come again
	kindBye                // the end that has dialled closes, or has closed

	requestInterval = time.Second
	controlMessages = 256
	ownMessages     = 64 // of them, not for answers
	maxProbes       = 8  // answers that are sent again, at a time
	maxEndedPeers   = 256
)

// message is what each of them carries.
type message struct {
	Request request
	From    address // of the endpoint that sends it, which not all devices tell
	QPN     uint32
	Data    uint32     // its endpoint for items
	Accept  acceptance // only with kindAccept
}

var messageLen = binary.Size(message{})

// check leaves the acceptance to the link that needs it.
func (m *message) check() error { return m.Request.check() }

func decodeMessage(b []byte, kind uint32) (m message, err error) {
	if err = decode(b, &m); err == nil && (len(b) != messageLen || kind < kindRequest || kind > kindBye || kind != kindAccept && m.Accept != acceptance{}) {
		err = fmt.Errorf("%w: a message of %d bytes and kind %d", ErrProtocol, len(b), kind)
	}
	return m, err
}

// srd reaches devices by scalable reliable datagrams. Its fields belong to the engine's goroutine.
type srd struct {
	*rdma.Datagrams // items and notes
	tasks           *rdma.DatagramPool
	dev             *localDevice

	control *rdma.Datagrams // messages; notes that the program does not take use up the receives of the other one
	sends   *rdma.DatagramPool
	out     *mmap.Map
	free    []int   // places in out
	own     message // its constant part
	probes  int
	listens bool

	links      map[pathID]*srdLink    // that this agent has dialled
	accepted   fifo.List[*srdLink]    // that others have, the longest unprobed first
	endedPeers fifo.Queue[*rdma.Peer] // whose links have ended: notes from them may still be in the receive queue
}

// srdLink is a link over SRD, as one end has it.
type srdLink struct {
	srd      *srd
	who      request    // the latest
	to       *rdma.Peer // for messages
	data     *rdma.Peer // for items; nil: not accepted
	closing  bool
	finished bool

	// Of the end that has dialled.
	path    *path  // nil: another agent has
	first   uint32 // Dials of its first request
	until   time.Time
	sending bool  // the latest request
	err     error // of the latest request; the agent's mutex guards it

	// Of the other one.
	in    *incoming
	place fifo.Node[*srdLink]
}

func openSRD(d *localDevice) (_ transport, err error) {
	s := &srd{dev: d, links: map[pathID]*srdLink{}}
	caps, err := rdma.QueryCapabilities(d.device, verbs.SRD)
	if err != nil {
		return nil, err
	}
	// RNRRetry: a note that the peer's program does not take must not stay at the device for ever.
	cfg := rdma.DatagramsConfig{Name: "transfer", Transport: verbs.SRD, Engine: d.engine, SendQueueSize: min(poolSize, caps.MaxSends), RNRRetry: 6}
	if s.Datagrams, err = rdma.NewDatagrams(d.device, cfg); err != nil {
		return nil, err
	}
	if s.tasks, err = s.Pool(poolSize, func(t *rdma.Task) { s.ended(t, nil) }, s.ended); err != nil {
		return s, err
	}
	cfg.Name, cfg.SendQueueSize = "transfer control", min(controlMessages, caps.MaxSends)
	if s.control, err = rdma.NewDatagrams(d.device, cfg); err != nil {
		return s, err
	}
	if s.sends, err = s.control.Pool(controlMessages, pe.TaskDone, pe.TaskFailed); err != nil {
		return s, err
	}
	for i := range controlMessages {
		s.free = append(s.free, i*messageLen)
	}
	if s.out, err = mmap.Alloc(d.device, controlMessages*messageLen, mmap.LocalReadWrite); err != nil {
		return s, err
	}
	return s, s.control.Receive(controlMessages, messageLen, s.received)
}

// Start starts both endpoints.
func (s *srd) Start() error {
	end := func(_, next pe.State) { // neither is of use without the other
		if next == pe.Stopping || next == pe.Idle {
			_ = errors.Join(s.Datagrams.Stop(), s.control.Stop())
		}
	}
	s.Datagrams.OnStateChange(end)
	s.control.OnStateChange(end)
	err := errors.Join(s.Datagrams.Start(), s.control.Start())
	if err != nil {
		return err
	}
	data, err := s.EndpointAddr()
	own, e := s.control.EndpointAddr()
	s.own = message{From: address{own.GID, cmp.Or(own.UDPPort, 4791)}, QPN: own.QPN, Data: data.QPN} // EFAs have no port
	return errors.Join(err, e)
}

// Close closes what has been opened.
func (s *srd) Close() error {
	err := s.Datagrams.Close()
	if s.control != nil {
		err = errors.Join(err, s.control.Close())
	}
	if s.out != nil {
		err = errors.Join(err, s.out.Close())
	}
	return err
}

func (s *srd) listen(string) (Addr, error) {
	s.listens = true
	return Addr{s.own.From.addrPort(), s.own.QPN}, nil
}

func (s *srd) full() bool { return len(s.links)+s.accepted.Len() >= s.dev.agent.cfg.MaxConnections }

// endpoint is the endpoint at an address.
func (s *srd) endpoint(a Addr) rdma.EndpointAddr {
	e := rdma.EndpointAddr{GID: verbs.GIDFromAddr(a.AddrPort.Addr()), QPN: a.QPN}
	if s.GID().Type == verbs.GIDRoCEv2 {
		e.UDPPort = a.AddrPort.Port()
	}
	return e
}

// pins is what is known of an endpoint.
type pins struct {
	n     int  // how often it is pinned
	from  Addr // where its agent listens, if that has dialled
	epoch uint64
}

// pinPeer returns a peer, which stays until unpinPeer, as does the address handle that lets it use memory here.
func pinPeer(c *rdma.Datagrams, addr rdma.EndpointAddr) (*rdma.Peer, error) {
	p, err := c.PeerAt(addr)
	if err != nil {
		return nil, err
	}
	h, ok := p.UserData().(*pins)
	if !ok {
		h = &pins{}
		p.SetUserData(h)
	}
	h.n++
	return p, nil
}

func unpinPeer(p *rdma.Peer) {
	if p == nil {
		return
	}
	h := p.UserData().(*pins)
	if h.n--; h.n == 0 {
		_ = p.Forget()
	}
}

// send sends a message if more than reserve buffers are free, and reports whether it does. ended, if it is not nil, is
// called with the outcome.
func (s *srd) send(to *rdma.Peer, kind uint32, who request, reserve int, ended func(error)) bool {
	if len(s.free) <= reserve {
		return false
	}
	m := s.own
	m.Request = who
	if kind == kindAccept {
		m.Accept = s.dev.acceptance()
	}
	at := s.free[len(s.free)-1]
	copy(s.out.Bytes()[at:], encode(m))
	t, err := s.sends.SendImm(to, bufinv.Source(s.out, at, messageLen), kind)
	err = pe.SubmitOrFree(t, err, func(t *rdma.Task, err error) {
		_ = t.Free()
		s.free = append(s.free, at)
		if ended != nil {
			ended(err)
		}
	})
	if err == nil {
		s.free = s.free[:len(s.free)-1]
	}
	return err == nil
}

// answer sends a message to whoever has sent one.
func (s *srd) answer(to rdma.EndpointAddr, kind uint32, who request) {
	if p, err := pinPeer(s.control, to); err == nil {
		s.send(p, kind, who, ownMessages, nil)
		unpinPeer(p)
	}
}

// received takes a message from anybody.
func (s *srd) received(r *rdma.Message) {
	kind, _ := r.Imm()
	m, err := decodeMessage(r.Bytes(), kind)
	from := s.endpoint(Addr{m.From.addrPort(), m.QPN})
	if p := r.Peer(); p != nil {
		from = p.Addr()
	}
	if err != nil || !s.handle(kind, from, &m) {
		s.dev.agent.refuse()
	}
}

// handle acts on a message, and reports whether the protocol allows it in the present state.
func (s *srd) handle(kind uint32, from rdma.EndpointAddr, m *message) bool {
	a, who := s.dev.agent, m.Request
	if kind == kindAccept || kind == kindBusy {
		l := s.links[who.Path]
		if l == nil {
			s.answer(from, kindBye, who)
		}
		return l != nil && who.Dials >= l.first && who.Dials <= l.who.Dials && l.answered(kind, m)
	}
	a.mu.Lock()
	in := a.incoming[who.Path]
	late := in != nil && (who.Dials < in.who.Dials || who.Dials == in.who.Dials && kind == kindRequest)
	if kind == kindBye && in != nil && !late {
		in.who.Dials = who.Dials
		in.close()
	}
	a.mu.Unlock()
	if kind == kindBye {
		return in != nil && !late
	}
	if !s.listens || late {
		return false
	}
	s.dev.requested(&call{
		who: who, from: from.GID.Addr(),
		accept: func(in *incoming) (link, error) { return s.accept(from, m, in) },
		reject: func(why []byte) { s.reject(from, who, why) },
	})
	return true
}

func (s *srd) dial(p *path, who request, timeout time.Duration) (link, error) {
	addr, err := parseAddr(p.target)
	if err == nil && s.full() {
		err = rdma.ErrFull
	}
	if err != nil {
		return nil, err
	}
	l := &srdLink{srd: s, who: who, path: p, first: who.Dials, until: s.dev.agent.host.Now().Add(timeout), err: rdma.ErrTimeout}
	l.who.Dials-- // sendRequest counts it
	if l.to, err = pinPeer(s.control, s.endpoint(addr)); err != nil {
		return nil, err
	}
	s.links[who.Path] = l
	return l, s.dev.engine.Do(l.sendRequest)
}

// sendRequest asks the peer to connect, and again after a while until it is too late.
func (l *srdLink) sendRequest() {
	a, s := l.srd.dev.agent, l.srd
	a.mu.Lock()
	left, err := l.until.Sub(a.host.Now()), l.err
	if l.closing || l.data != nil {
		left, err = 0, nil
	}
	if left > 0 && !l.sending {
		l.who.Dials++
		l.path.dials = l.who.Dials
		l.sending = s.send(l.to, kindRequest, l.who, 0, l.requestSent)
	}
	if left > 0 {
		a.host.AfterFunc(min(requestInterval, left), func() { _ = s.dev.engine.Do(l.sendRequest) })
	}
	a.mu.Unlock()
	if left <= 0 && err != nil {
		l.path.changed(l, rdma.Failed, err)
	}
}

// requestSent is called with the outcome of sending a request.
func (l *srdLink) requestSent(err error) {
	if l.sending = false; err != nil {
		l.setError(err)
	}
	if errors.Is(err, rdma.ErrRemoteInvalid) { // there is no such endpoint, and will be none
		l.path.changed(l, rdma.Failed, err)
	}
}

// setError records why the latest request failed.
func (l *srdLink) setError(err error) {
	l.srd.dev.agent.mu.Lock()
	l.err = err
	l.srd.dev.agent.mu.Unlock()
}

// answered takes the answer to a request.
func (l *srdLink) answered(kind uint32, m *message) bool {
	switch {
	case l.closing || l.data != nil: // an answer was there before
	case kind == kindBusy:
		l.setError(fmt.Errorf("%w, which says %q", rdma.ErrRejected, busy))
	default:
		addr, err := l.to.Addr(), error(nil)
		addr.QPN = m.Data
		if l.data, err = pinPeer(l.srd.Datagrams, addr); err != nil {
			return false
		}
		l.path.accepted(l, m.Accept, m.Accept.check())
	}
	return true
}

func (s *srd) accept(from rdma.EndpointAddr, m *message, in *incoming) (_ link, err error) {
	if s.full() {
		return nil, rdma.ErrFull
	}
	l := &srdLink{srd: s, who: m.Request, in: in}
	l.place.Value = l
	if l.to, err = pinPeer(s.control, from); err != nil {
		return nil, err
	}
	data, port := from, l.who.Port
	data.QPN = m.Data
	if l.data, err = pinPeer(s.Datagrams, data); err != nil {
		unpinPeer(l.to)
		return nil, err
	}
	h := l.data.UserData().(*pins)
	if h.from, h.epoch = (Addr{AddrPort: netip.AddrPortFrom(data.GID.Addr(), port)}), l.who.Epoch; port != 0 {
		h.from.QPN = from.QPN
	}
	s.accepted.Push(&l.place)
	s.sendAccept(l, nil)
	return l, nil
}

// sendAccept answers the request of a link, and reports whether it does. sent, if it is not nil, is called when the
// answer has arrived or failed.
func (s *srd) sendAccept(l *srdLink, sent func()) bool {
	return s.send(l.to, kindAccept, l.who, ownMessages, func(err error) {
		if sent != nil {
			sent()
		}
		if err != nil {
			_ = l.Close() // the end that has dialled asks again, if it still exists
		}
	})
}

// reject answers only if the request is to come again. Then it finds out whether a few links have ended at the other
// end, which could not tell.
func (s *srd) reject(from rdma.EndpointAddr, who request, why []byte) {
	if !bytes.Equal(why, busy) {
		return
	}
	s.answer(from, kindBusy, who)
	for n := min(s.accepted.Len(), maxProbes-s.probes); n > 0; n-- {
		l := s.accepted.Pop().Value
		s.accepted.Push(&l.place)
		if s.sendAccept(l, func() { s.probes-- }) {
			s.probes++
		}
	}
}

func (s *srd) task(pc *piece) (*rdma.Task, error) {
	return taskFor(s.tasks, pc.path.conn.(*srdLink).data, pc)
}

// ended takes a piece back. If its failure ends the link, that happens when the device has no piece of it any more.
func (s *srd) ended(t *rdma.Task, err error) {
	a, path := s.dev.agent, t.UserData().(*piece).path
	l, ok := path.conn.(*srdLink)
	s.dev.ended(t, err)
	if !ok {
		return
	}
	a.mu.Lock()
	failed := err != nil && path.state == pathClosing && !l.closing && path.peer.closed == nil
	a.mu.Unlock()
	if failed {
		path.changed(l, rdma.Failed, err)
	}
	l.finish()
}

// sender takes notes of those that are connected, or were when they sent them.
func (s *srd) sender(t *rdma.ReceiveTask, isNote bool) (from Addr, epoch uint64, ok bool) {
	if p := t.Peer(); p != nil && isNote && t.Opcode() == rdma.ReceivedWriteImm {
		if h, _ := p.UserData().(*pins); h != nil {
			return h.from, h.epoch, h.epoch != 0
		}
	}
	return from, 0, false
}

func (l *srdLink) DialError() error { return l.err }
func (l *srdLink) String() string   { return "SRD to " + l.to.String() }

func (l *srdLink) Close() error {
	l.closing = true
	return l.srd.dev.engine.Do(l.finish)
}

// finish ends a closed link of which the device has nothing.
func (l *srdLink) finish() {
	a, s := l.srd.dev.agent, l.srd
	a.mu.Lock()
	if !l.closing || l.finished || l.path != nil && l.path.inFlight > 0 {
		a.mu.Unlock()
		return
	}
	l.finished = true
	if l.path == nil {
		s.accepted.Remove(&l.place)
		s.endedPeers.Push(l.data)
		if l.data = nil; s.endedPeers.Len() > maxEndedPeers {
			l.data = s.endedPeers.Pop() // to release
		}
		if l.in.conn == l {
			l.in.down()
		}
	} else if l.path.err == nil { // otherwise the next request tells
		s.send(l.to, kindBye, l.who, 0, nil)
	}
	a.mu.Unlock()
	unpinPeer(l.to)
	unpinPeer(l.data)
	if l.path != nil {
		delete(s.links, l.who.Path)
		l.path.changed(l, rdma.Closed, nil)
	}
}
