package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/mmap"
)

// Peer is another agent, as this one reaches it at an address.
type Peer struct {
	agent  *Agent
	addr   string // that was dialled
	serial uint32

	// Guarded by the agent's mutex.
	links    []*link // by device of the agent
	others   []netip.AddrPort
	epoch    uint64 // of the peer; zero: not connected yet
	work     [levels]fifo[*run]
	filling  *run
	asks     []*ask // the first is on its way if asked is set
	asked    *link
	segments map[string]*RemoteSegment // of this epoch
	past     []*RemoteSegment          // that are stale, and in use
	closed   error                     // why it ended
	gone     chan struct{}             // Close waits for it
}

// Dial connects to the agent that listens at HOST:PORT. It returns when one device of this agent is
// connected; the others follow when there is work for them. If the connection ends, it is made again when
// there is work. Each call makes a Peer with connections of its own.
//
// The error matches the cause of ctx, ErrInvalid, ErrClosed, ErrProtocol, or those of rdma.Connections.Dial.
func (a *Agent) Dial(ctx context.Context, addr string) (*Peer, error) {
	if err := splitAddr(addr); err != nil {
		return nil, err
	}
	a.mu.Lock()
	if err := a.alive(); err != nil {
		a.mu.Unlock()
		return nil, fmt.Errorf("dial the transfer agent at %s: %w", addr, err)
	}
	a.serial++
	p := &Peer{agent: a, addr: addr, serial: a.serial, segments: map[string]*RemoteSegment{}, gone: make(chan struct{})}
	for _, r := range a.rails {
		p.links = append(p.links, &link{peer: p, rail: r})
	}
	a.peers = append(a.peers, p)
	a.mu.Unlock()
	if _, err := p.ask(ctx, query{}); err != nil {
		p.Close()
		return nil, fmt.Errorf("dial the transfer agent at %s: %w", addr, err)
	}
	return p, nil
}

// Addr is the address that was dialled.
func (p *Peer) Addr() string { return p.addr }

// String names the peer.
func (p *Peer) String() string { return "transfer agent at " + p.addr }

// Close ends the items that have not ended, with ErrClosed, and the connections. It returns when no device
// here touches memory for the peer. Segments of the peer cannot be used any more. Closing again only waits.
func (p *Peer) Close() {
	a := p.agent
	a.mu.Lock()
	p.end(fmt.Errorf("%w: the peer at %s", ErrClosed, p.addr))
	a.mu.Unlock()
	a.kick()
	<-p.gone
}

// end ends the peer. The lock is held.
func (p *Peer) end(err error) {
	if p.closed != nil {
		return
	}
	p.endWork(err)
	p.closed = err
	for _, l := range p.links {
		if l.state == linkQueued {
			l.state = linkDown
		}
		l.close()
	}
	p.settle()
}

// settle notes the end of a closed peer when all of its connections have ended. The lock is held.
func (p *Peer) settle() {
	if p.closed == nil || slices.ContainsFunc(p.links, func(l *link) bool { return l.state != linkDown }) {
		return
	}
	select {
	case <-p.gone:
		return
	default:
	}
	p.forget()
	p.agent.peers = slices.DeleteFunc(p.agent.peers, func(q *Peer) bool { return p == q })
	close(p.gone)
}

// endWork ends what waits for a connection to the peer. The lock is held.
func (p *Peer) endWork(err error) {
	for i := range p.work {
		for u := p.work[i].pop(); u != nil; u = p.work[i].pop() {
			u.queued = false
			u.drop(err)
		}
	}
	for _, l := range p.links {
		l.endFenced(err)
	}
	for _, q := range p.asks {
		q.end(nil, err)
	}
	p.asks, p.asked = nil, nil
}

// enqueue puts a run in its place among the work for the peer. The lock is held.
func (p *Peer) enqueue(u *run) {
	if u.queued {
		return
	}
	u.queued = true
	p.work[u.level].push(u)
	for _, l := range p.links {
		l.activate(u.level)
	}
}

// hasWork reports whether something waits for a connection. The lock is held.
func (p *Peer) hasWork() bool {
	for i := range p.work {
		if p.work[i].len() > 0 {
			return true
		}
	}
	return len(p.asks) > 0 || slices.ContainsFunc(p.links, func(l *link) bool { return l.fenced != nil })
}

// connect begins to connect on the devices that are not connected. Until one is, only one tries, since the
// others learn from it at which address to dial. The lock is held.
func (p *Peer) connect() {
	if p.closed != nil || p.agent.alive() != nil {
		return
	}
	if !slices.ContainsFunc(p.links, func(l *link) bool { return l.state == linkReady }) {
		if best := p.untried(); best != nil && !p.connecting() {
			best.dial()
		}
		return
	}
	for _, l := range p.links {
		if l.state == linkDown && (l.failures == 0 || !time.Now().Before(l.retryAt)) {
			l.dial()
		}
	}
}

// connecting reports whether a device is connected, or about to be, or about to end a connection. The lock is held.
func (p *Peer) connecting() bool {
	return slices.ContainsFunc(p.links, func(l *link) bool { return l.state != linkDown })
}

// untried is the device to try next: that with the fewest failures, or none. The lock is held.
func (p *Peer) untried() *link {
	best := slices.MinFunc(p.links, func(l, m *link) int { return cmp.Compare(l.failures, m.failures) })
	if best.failures >= maxFailures {
		return nil
	}
	return best
}

// lost notes that a device could not be connected to the peer, or is no longer. The lock is held.
func (p *Peer) lost(l *link, err error) {
	if p.asked == l {
		p.asked = nil
		p.tell()
	}
	if p.closed != nil {
		p.settle()
		return
	}
	if l.fenced != nil {
		if l.failures < maxFailures && p.agent.alive() == nil {
			l.dial() // what it had can go on only when the peer has confirmed its end
			return
		}
		l.endFenced(fmt.Errorf("%w: %w", ErrUnknown, err))
	}
	if p.hasWork() {
		p.connect()
	}
	if !p.connecting() && p.untried() == nil {
		p.endWork(fmt.Errorf("no connection to the transfer agent at %s: %w", p.addr, err))
	}
	if !p.connecting() && !p.hasWork() {
		for _, l := range p.links {
			l.failures = 0 // the next work tries all of them again
		}
	}
}

// reached notes whom a connection has reached. The lock is held.
func (p *Peer) reached(l *link, acc acceptance) {
	l.epoch, l.device = acc.epoch, int(acc.device)
	p.others = acc.addrs
	if p.epoch == acc.epoch {
		return
	}
	if p.epoch != 0 {
		p.agent.cfg.Log.Info().Str("peer", p.addr).Msg("the peer was opened again: its segments have to be looked up again")
	}
	p.epoch = acc.epoch
	for _, s := range p.sorted() {
		p.retire(s)
	}
	for _, other := range p.links {
		if other.epoch != p.epoch {
			other.close()
		}
	}
}

// sorted are the segments in the order of their names.
func (p *Peer) sorted() []*RemoteSegment {
	list := make([]*RemoteSegment, 0, len(p.segments))
	for _, s := range p.segments {
		list = append(list, s)
	}
	slices.SortFunc(list, func(s, t *RemoteSegment) int { return cmp.Compare(s.name, t.name) })
	return list
}

// retire makes a segment stale.
func (p *Peer) retire(s *RemoteSegment) {
	delete(p.segments, s.name)
	s.stale = true
	p.past = append(p.past, s)
	s.settle()
}

// forget closes what the peer's segments hold. The lock is held.
func (p *Peer) forget() {
	for _, s := range p.sorted() {
		p.retire(s)
	}
}

// RemoteSegment is memory that a peer publishes.
type RemoteSegment struct {
	peer  *Peer
	name  string
	size  int
	perm  mmap.Permission
	epoch uint64
	keys  []key

	// Guarded by the agent's mutex.
	maps  []reach // by device of the agent
	inUse int     // items that have not ended
	stale bool
}

// reach is a segment through one device here and one of the peer's.
type reach struct {
	device int
	m      *mmap.Map
}

// Name is the name by which the peer publishes it.
func (s *RemoteSegment) Name() string { return s.name }

// Peer is whose it is.
func (s *RemoteSegment) Peer() *Peer { return s.peer }

// Len is its size in bytes.
func (s *RemoteSegment) Len() int { return s.size }

// Permissions are what the peer allows.
func (s *RemoteSegment) Permissions() mmap.Permission { return s.perm }

// Stale reports whether the segment is known to be of the past: see ErrStale.
func (s *RemoteSegment) Stale() bool {
	s.peer.agent.mu.Lock()
	defer s.peer.agent.mu.Unlock()
	return s.stale
}

func (s *RemoteSegment) allows(perm mmap.Permission) error {
	if !s.perm.Has(perm) {
		return fmt.Errorf("%w: the segment allows %v, not %v", ErrPermission, s.perm, perm)
	}
	return nil
}

// through returns the memory as the device of a connection reaches it. The lock is held.
func (s *RemoteSegment) through(l *link) (*mmap.Map, error) {
	if s.maps == nil {
		s.maps = make([]reach, len(s.peer.links))
	}
	at := &s.maps[l.rail.index]
	if at.m != nil && at.device == l.device {
		return at.m, nil
	}
	if at.m != nil {
		if err := at.m.Close(); err != nil {
			return nil, err
		}
	}
	k := s.keys[l.device]
	m, err := mmap.FromKey(l.rail.dev, k.addr, s.size, k.rkey, s.perm)
	*at = reach{l.device, m}
	return m, err
}

// settle lets go of a stale segment that no item uses. The lock is held.
func (s *RemoteSegment) settle() {
	if !s.stale || s.inUse > 0 {
		return
	}
	for _, r := range s.maps {
		if r.m != nil {
			_ = r.m.Close() // only its use here ends
		}
	}
	s.maps = nil
	s.peer.past = slices.DeleteFunc(s.peer.past, func(t *RemoteSegment) bool { return t == s })
}

// ask is a query that waits for its reply.
type ask struct {
	query    query
	segments []*RemoteSegment
	more     bool
	err      error
	done     chan struct{}
}

func (q *ask) end(segments []*RemoteSegment, err error) {
	q.segments, q.err = segments, err
	close(q.done)
}

func (p *Peer) ask(ctx context.Context, query query) (*ask, error) {
	a := p.agent
	q := &ask{query: query, done: make(chan struct{})}
	a.mu.Lock()
	if err := errors.Join(a.alive(), p.closed); err != nil {
		a.mu.Unlock()
		return nil, err
	}
	p.asks = append(p.asks, q)
	p.tell()
	p.connect()
	a.mu.Unlock()
	a.kick()
	select {
	case <-q.done:
		return q, q.err
	case <-ctx.Done():
		a.mu.Lock()
		defer a.mu.Unlock()
		if i := slices.Index(p.asks, q); i > 0 || i == 0 && p.asked == nil { // not on its way
			p.asks = slices.Delete(p.asks, i, i+1)
		}
		return nil, errors.Join(context.Cause(ctx), p.dialError())
	}
}

// dialError is why the latest attempts to connect have failed. The lock is held.
func (p *Peer) dialError() (err error) {
	for _, l := range p.links {
		if l.state == linkDialing && l.conn != nil {
			err = errors.Join(err, l.conn.DialError())
		}
	}
	return err
}

// tell has the first query sent, if a connection is there and none is on its way. The lock is held.
func (p *Peer) tell() {
	if p.asked != nil || len(p.asks) == 0 {
		return
	}
	for _, l := range p.links {
		if l.state == linkReady {
			p.asked = l
			l.rail.tell(l)
			return
		}
	}
}

// answered takes the reply to the first query. The lock is held.
func (p *Peer) answered(l *link, r reply) error {
	if p.asked != l || len(p.asks) == 0 {
		return fmt.Errorf("%w: a reply without a query", ErrProtocol)
	}
	q := p.asks[0]
	p.asks, p.asked = p.asks[1:], nil
	var segments []*RemoteSegment
	for _, d := range r.segments {
		if d.name <= q.query.name && !q.query.only || q.query.only && d.name != q.query.name {
			q.end(nil, fmt.Errorf("%w: a reply with a segment that was not asked for", ErrProtocol))
			return q.err
		}
		s := p.segments[d.name]
		if s == nil || s.size != int(d.size) || s.perm != d.perm || !slices.Equal(s.keys, d.keys) {
			if s != nil {
				p.retire(s)
			}
			s = &RemoteSegment{peer: p, name: d.name, size: int(d.size), perm: d.perm, epoch: l.epoch, keys: d.keys}
			p.segments[d.name] = s
		}
		segments = append(segments, s)
	}
	q.more = r.more
	q.end(segments, nil)
	p.tell()
	return nil
}

// Segment asks the peer for the segment of a name. It returns the same RemoteSegment as long as the memory is
// the same. The error matches ErrNoSegment, ErrClosed, the cause of ctx, or is that of connecting.
func (p *Peer) Segment(ctx context.Context, name string) (*RemoteSegment, error) {
	if name == "" || len(name) > maxName {
		return nil, fmt.Errorf("%w: a segment's name has 1 to %d bytes, not %d", ErrInvalid, maxName, len(name))
	}
	q, err := p.ask(ctx, query{only: true, name: name})
	if err == nil && len(q.segments) == 0 {
		err = ErrNoSegment
	}
	if err != nil {
		return nil, fmt.Errorf("look up segment %q of the transfer agent at %s: %w", name, p.addr, err)
	}
	return q.segments[0], nil
}

// Segments asks the peer for all of its segments, in the order of their names. Errors are as with Segment.
func (p *Peer) Segments(ctx context.Context) (all []*RemoteSegment, err error) {
	q := &ask{more: true}
	after := ""
	for q.more {
		if q, err = p.ask(ctx, query{name: after}); err != nil {
			return nil, fmt.Errorf("look up the segments of the transfer agent at %s: %w", p.addr, err)
		}
		all = append(all, q.segments...)
		if q.more {
			after = all[len(all)-1].name
		}
	}
	return all, nil
}
