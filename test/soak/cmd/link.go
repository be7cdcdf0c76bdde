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
	msgHello   = iota + 1 // the number of the area on this side that the peer may use
	msgDone               // this end has no more work: the client sends it first, then the server
	msgChecked            // the data that the peer's worker wrote is right
	msgData               // the message is from a worker
	msgWritten            // the write is from a worker
)

func immediate(what, number int) uint32 { return uint32(what)<<24 | uint32(number) }

// link is the relation between two programs: a connection or, with SRD, their two endpoints.
// It belongs to the engine's goroutine.
type link struct {
	e       *end
	client  string
	session int
	steady  bool // it stays for the whole run
	abrupt  bool // the client ends it during the work
	first   bool // this end is the client, and ends the link
	budget  int  // of operations, after which the client leaves; 0: none

	to     operations       // at the peer
	conn   *rdma.Connection // nil with SRD
	peer   *rdma.Peer       // nil with connections
	remote *mmap.Map        // closed with the link if there is no connection

	mem            *mmap.Map // of the end, or of this link only
	area, peerArea int       // offsets
	key, peerKey   uint64    // of the data of each direction
	workers        [workers]worker
	peerPieces     [workers]uint64 // the peer's pieces so far
	ops            int
	inFlight       int // tasks in flight

	ready     bool // tasks can be submitted
	gotHello  bool // the peer has sent msgHello
	finishing bool
	done      bool // this end has sent msgDone
	peerDone  bool // the peer has sent msgDone
	finished  bool // all is done, or the link was abandoned: a failure is no error any more
	failed    bool
	closed    bool // the connection is Closed
	ended     bool
}

// newLink makes a link in a free area of the end's memory. With SRD, the server gives each
// link memory of its own: a client that was stopped and given up may write when it resumes,
// and only a key that is no longer valid prevents that. The index distinguishes the links of a session.
func (e *end) newLink(client string, session, index int, first bool) (*link, error) {
	l := &link{e: e, client: client, session: session, first: first, mem: e.mem, area: area(0)}
	if e.service.datagrams() && !first {
		var err error
		if l.mem, err = mmap.Alloc(e.dev, fixedSize+areaSize, allPermissions); err != nil {
			return nil, err
		}
		copy(l.mem.Bytes(), e.mem.Bytes()[:fixedSize])
	} else if len(e.areas) == 0 {
		return nil, fmt.Errorf("no area is free: there are %d links", len(e.links))
	} else {
		l.area = area(e.areas[len(e.areas)-1])
		e.areas = e.areas[:len(e.areas)-1]
	}
	l.key, l.peerKey = key(e.seed, client, session, index, first), key(e.seed, client, session, index, !first)
	for i := range l.workers {
		l.workers[i] = worker{link: l, number: i, at: l.area + i*workerSize}
		clear(l.mem.Bytes()[l.workers[i].at+cellsAt:][:16])
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

// setConnection sets the connection of a link.
func (l *link) setConnection(conn *rdma.Connection, remote *mmap.Map) {
	l.to, l.conn, l.remote = target[*rdma.Connection]{l.e.tasks, conn}, conn, remote
	conn.SetUserData(l)
}

// setPeer sets the peer of a link.
func (l *link) setPeer(peer *rdma.Peer, remote *mmap.Map) {
	l.to, l.peer, l.remote, l.ready = target[*rdma.Peer]{l.e.datagramTasks, peer}, peer, remote, true
	peer.SetUserData(l)
	l.e.stats.Connections++
}

// sendHello sends the peer the number of its area.
func (l *link) sendHello() { l.sendMsg(msgHello, (l.area-fixedSize)/areaSize) }

// begin starts the work once both ends are ready.
func (l *link) begin() {
	if !l.ready || !l.gotHello {
		return
	}
	if l.e.leaving != nil && l.e.leaving(l) {
		l.finishing = true
	}
	for i := range l.workers {
		l.workers[i].next()
	}
}

// working reports whether workers may start operations.
func (l *link) working() bool {
	return l.ready && l.gotHello && !l.finishing && !l.finished && !l.failed && !l.e.paused
}

func (l *link) busy() bool {
	for i := range l.workers {
		if l.workers[i].busy {
			return true
		}
	}
	return false
}

// isIdle reports whether the link is one that stays, and is idle.
func (l *link) isIdle() bool {
	return l.steady && l.gotHello && !l.finishing && !l.failed && l.inFlight == 0 && !l.busy()
}

// received handles a message of the peer.
func (l *link) received(m *rdma.Message) {
	e := l.e
	imm, ok := m.Imm()
	what, number := int(imm>>24), int(imm&(1<<24-1))
	switch {
	case !ok && m.Length() > 0:
		l.compare(m, int(m.Bytes()[0]), m.Bytes()[1:])
	case what == msgData:
		l.compare(m, number, m.Bytes())
	case what == msgWritten && number < workers && m.Length() <= maxData:
		at := l.area + number*workerSize + targetAt
		if l.compare(m, number, l.mem.Bytes()[at:][:m.Length()]) && !l.failed && !l.finished {
			l.sendMsg(msgChecked, number)
		}
	case what == msgHello && !l.gotHello:
		l.gotHello, l.peerArea = true, area(number)
		if l.conn == nil && !l.first {
			l.sendHello()
		}
		l.begin()
	case what == msgChecked && number < workers:
		l.workers[number].checked()
	case what == msgDone:
		l.peerDone = true
		l.finish()
	default:
		e.wrong(fmt.Errorf("%v: a %v is invalid: immediate %#x, %d bytes", l, m.Opcode(), imm, m.Length()))
	}
}

// compare checks every byte of a piece from the peer's worker.
func (l *link) compare(m *rdma.Message, number int, got []byte) bool {
	if number >= workers {
		l.e.wrong(fmt.Errorf("%v: a %v is of worker %d, and there are %d", l, m.Opcode(), number, workers))
		return false
	}
	l.peerPieces[number]++
	if err := l.e.pattern.check(got, l.peerKey+uint64(number), l.peerPieces[number]); err != nil {
		l.e.wrong(fmt.Errorf("%v: %v %d of worker %d: %w", l, m.Opcode(), l.peerPieces[number], number, err))
		return false
	}
	l.e.stats.Verified++
	return true
}

// sendMsg sends an empty message with an immediate.
func (l *link) sendMsg(what, number int) {
	task, err := l.to.sendImm(nil, immediate(what, number))
	if err == nil {
		task.SetUserData(l)
		err = pe.SubmitOrFree(task, nil)
	}
	if err != nil {
		l.fail(fmt.Errorf("send %#x: %w", immediate(what, number), err))
		return
	}
	l.inFlight++
}

// finish ends the work and then, together with the peer, the link.
func (l *link) finish() {
	l.finishing = true
	l.check()
}

// abandon ends the link at once, during the work.
func (l *link) abandon() {
	l.finishing, l.finished = true, true
	for i := range l.workers {
		l.workers[i].stopWaiting()
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
	for i := range l.workers {
		l.workers[i].stopWaiting()
	}
	abrupt := l.abrupt && (errors.Is(err, rdma.ErrPeerClosed) || errors.Is(err, rdma.ErrRetryExceeded) || errors.Is(err, rdma.ErrTimeout))
	switch {
	case l.finished:
	case abrupt:
		l.e.stats.Abrupt++
	default:
		l.e.lost(l, err)
	}
	l.check()
}

// check takes the next step towards the end of the link that is possible now.
func (l *link) check() {
	e := l.e
	if l.ended || l.inFlight > 0 || l.busy() {
		return
	}
	gone := l.failed || l.finished
	switch {
	case l.conn == nil && gone, l.conn != nil && l.closed:
		l.end()
	case gone || l.conn != nil && l.conn.State() != rdma.Ready:
		// The callback of the connection will report Closed.
	case l.finishing && l.gotHello && !l.done && (l.first || l.peerDone):
		l.done = true
		l.finished = !l.first
		l.sendMsg(msgDone, 0)
	case l.done && l.peerDone && l.first:
		l.finished = true
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
