package main

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// The upper 8 bits of an immediate. The other 24 bits are a number.
const (
	sayHello   = iota + 1 // the number of the area on this side that the peer may use
	sayDone               // this end has no more work: the client sends it first, then the server
	sayChecked            // the data that the peer's shuttle wrote is right
	sayData               // the message is from a shuttle
	sayWritten            // the write is from a shuttle
)

func immediate(what, number int) uint32 { return uint32(what)<<24 | uint32(number) }

// link is the relation between two programs: a connection or, with SRD, their two endpoints.
// It belongs to the engine's goroutine.
type link struct {
	e       *end
	client  string
	session int
	steady  bool // it stays for the whole run
	rude    bool // the client ends it during the work
	first   bool // this end is the client, and ends the link
	budget  int  // of operations, after which the client leaves; 0: none

	to     operations       // at the peer
	conn   *rdma.Connection // nil with SRD
	peer   *rdma.Peer       // nil with connections
	remote *mmap.Map        // closed with the link if there is no connection

	mem            *mmap.Map // of the end, or of this link only
	area, peerArea int       // offsets
	key, peerKey   uint64    // of the data of each direction
	shuttles       [shuttles]shuttle
	seen           [shuttles]uint64 // the peer's pieces so far
	ops            int
	out            int // tasks in flight

	ready   bool // tasks can be submitted
	greeted bool // the peer has sent sayHello
	leaving bool
	done    bool // this end has sent sayDone
	heard   bool // the peer has sent sayDone
	over    bool // all is done, or the link was abandoned: a failure is no error any more
	failed  bool
	closed  bool // the connection is Closed
	ended   bool
}

// newLink makes a link in a free area of the end's memory. With SRD, the server gives each
// link memory of its own: a client that was stopped and given up may write when it resumes,
// and only a key that is no longer valid prevents that. The index distinguishes the links of a session.
func (e *end) newLink(client string, session, index int, first bool) (*link, error) {
	l := &link{e: e, client: client, session: session, first: first, mem: e.mem, area: area(0)}
	if e.service.datagrams() && !first {
		var err error
		if l.mem, err = mmap.Alloc(e.dev, fixedSize+areaSize, everything); err != nil {
			return nil, err
		}
		copy(l.mem.Bytes(), e.mem.Bytes()[:fixedSize])
	} else if len(e.areas) == 0 {
		return nil, fmt.Errorf("%d links are there, and no area is left", len(e.links))
	} else {
		l.area = area(e.areas[len(e.areas)-1])
		e.areas = e.areas[:len(e.areas)-1]
	}
	l.key, l.peerKey = key(e.seed, client, session, index, first), key(e.seed, client, session, index, !first)
	for i := range l.shuttles {
		l.shuttles[i] = shuttle{link: l, number: i, at: l.area + i*shuttleSize}
		clear(l.mem.Bytes()[l.shuttles[i].at+cellsAt:][:16])
	}
	e.links[l] = true
	return l, nil
}

func (l *link) String() string {
	if l.conn != nil {
		return fmt.Sprintf("session %s on %v", sessionName(l.client, l.session), l.conn)
	}
	return fmt.Sprintf("session %s with %v", sessionName(l.client, l.session), l.peer)
}

// on sets the connection of a link.
func (l *link) on(conn *rdma.Connection, remote *mmap.Map) {
	l.to, l.conn, l.remote = target[*rdma.Connection]{l.e.tasks, conn}, conn, remote
	conn.SetUserData(l)
}

// with sets the peer of a link.
func (l *link) with(peer *rdma.Peer, remote *mmap.Map) {
	l.to, l.peer, l.remote, l.ready = target[*rdma.Peer]{l.e.datagramTasks, peer}, peer, remote, true
	peer.SetUserData(l)
	l.e.stats.Connections++
}

// greet sends the peer the number of its area.
func (l *link) greet() { l.say(sayHello, (l.area-fixedSize)/areaSize) }

// begin starts the work once both ends are ready.
func (l *link) begin() {
	if !l.ready || !l.greeted {
		return
	}
	if l.e.leaving != nil && l.e.leaving(l) {
		l.leaving = true
	}
	for i := range l.shuttles {
		l.shuttles[i].next()
	}
}

// working reports whether shuttles may start operations.
func (l *link) working() bool {
	return l.ready && l.greeted && !l.leaving && !l.over && !l.failed && !l.e.paused
}

func (l *link) busy() bool {
	for i := range l.shuttles {
		if l.shuttles[i].busy {
			return true
		}
	}
	return false
}

// resting reports whether the link is one that stays, and is idle.
func (l *link) resting() bool {
	return l.steady && l.greeted && !l.leaving && !l.failed && l.out == 0 && !l.busy()
}

// received handles a message of the peer.
func (l *link) received(m *rdma.Message) {
	e := l.e
	imm, ok := m.Imm()
	what, number := int(imm>>24), int(imm&(1<<24-1))
	switch {
	case !ok && m.Length() > 0:
		l.compare(m, int(m.Bytes()[0]), m.Bytes()[1:])
	case what == sayData:
		l.compare(m, number, m.Bytes())
	case what == sayWritten && number < shuttles && m.Length() <= mostData:
		at := l.area + number*shuttleSize + targetAt
		if l.compare(m, number, l.mem.Bytes()[at:][:m.Length()]) && !l.failed && !l.over {
			l.say(sayChecked, number)
		}
	case what == sayHello && !l.greeted:
		l.greeted, l.peerArea = true, area(number)
		if l.conn == nil && !l.first {
			l.greet()
		}
		l.begin()
	case what == sayChecked && number < shuttles:
		l.shuttles[number].checked()
	case what == sayDone:
		l.heard = true
		l.leave()
	default:
		e.wrong(fmt.Errorf("%v: a %v makes no sense: immediate %#x, %d bytes", l, m.Opcode(), imm, m.Length()))
	}
}

// compare checks every byte of a piece from the peer's shuttle.
func (l *link) compare(m *rdma.Message, number int, got []byte) bool {
	if number >= shuttles {
		l.e.wrong(fmt.Errorf("%v: a %v is of shuttle %d, and there are %d", l, m.Opcode(), number, shuttles))
		return false
	}
	l.seen[number]++
	if err := l.e.pattern.check(got, l.peerKey+uint64(number), l.seen[number]); err != nil {
		l.e.wrong(fmt.Errorf("%v: %v %d of shuttle %d: %w", l, m.Opcode(), l.seen[number], number, err))
		return false
	}
	l.e.stats.Verified++
	return true
}

// say sends an empty message with an immediate.
func (l *link) say(what, number int) {
	task, err := l.to.sendImm(nil, immediate(what, number))
	if err == nil {
		task.SetUserData(l)
		err = pe.SubmitNew(task, nil)
	}
	if err != nil {
		l.fail(fmt.Errorf("send %#x: %w", immediate(what, number), err))
		return
	}
	l.out++
}

// leave ends the work and then, together with the peer, the link.
func (l *link) leave() {
	l.leaving = true
	l.check()
}

// abandon ends the link at once, during the work.
func (l *link) abandon() {
	l.leaving, l.over = true, true
	for i := range l.shuttles {
		l.shuttles[i].giveUp()
	}
	if l.conn != nil {
		l.e.check(l.conn.Close())
	}
	l.check()
}

// fail is called with every failure of the link.
func (l *link) fail(err error) {
	if l.failed {
		return
	}
	l.failed = true
	for i := range l.shuttles {
		l.shuttles[i].giveUp()
	}
	rude := l.rude && (errors.Is(err, rdma.ErrPeerClosed) || errors.Is(err, rdma.ErrRetryExceeded) || errors.Is(err, rdma.ErrTimeout))
	switch {
	case l.over:
	case rude:
		l.e.stats.Rude++
	default:
		l.e.lost(l, err)
	}
	l.check()
}

// check takes the next step towards the end of the link that is possible now.
func (l *link) check() {
	e := l.e
	if l.ended || l.out > 0 || l.busy() {
		return
	}
	gone := l.failed || l.over
	switch {
	case l.conn == nil && gone, l.conn != nil && l.closed:
		l.end()
	case gone || l.conn != nil && l.conn.State() != rdma.Ready:
		// The callback of the connection will report Closed.
	case l.leaving && l.greeted && !l.done && (l.first || l.heard):
		l.done = true
		l.over = !l.first
		l.say(sayDone, 0)
	case l.done && l.heard && l.first:
		l.over = true
		if l.conn != nil {
			e.check(l.conn.Close())
		}
		l.check()
	}
}

// end releases what the link holds.
func (l *link) end() {
	e := l.e
	l.ended = true
	if l.conn == nil {
		if l.peer.UserData() == l {
			e.check(l.peer.Forget())
		}
		e.check(l.remote.Close())
	}
	delete(e.links, l)
	if l.mem == e.mem {
		e.areas = append(e.areas, (l.area-fixedSize)/areaSize)
	} else {
		e.check(l.mem.Close())
	}
	e.changed(l)
}
