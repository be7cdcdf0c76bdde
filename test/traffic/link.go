package traffic

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/pattern"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// The upper 8 bits of an immediate. The other 24 bits are a number.
const (
	msgHello   = iota + 1 // the number of the area on this side that the peer may use; the message is the descriptor of the memory
	msgDone               // this end has no more work: the client sends it first, then the server
	msgChecked            // the data that the peer's worker wrote is right
	msgData               // the message is from a worker
	msgWritten            // the write is from a worker
)

func immediate(what, number int) uint32 { return uint32(what)<<24 | uint32(number) }

// stride is the distance between two pieces in the data of a worker.
const stride = 1 << 24

// LinkConfig describes a link. Both ends give the same Name; the client gives the Budget.
type LinkConfig struct {
	Name   []any         // it distinguishes the links of all programs
	Client string        // whose link it is, for the caller
	Number int           // likewise
	First  bool          // this end is the client, and ends the link
	Abrupt bool          // the client ends it during the work
	Budget int           // of operations, after which the client leaves; 0: none
	Stays  bool          // for the whole run: between its operations there are pauses
	Pause  time.Duration // between two operations, at most; 0: none
}

// Link is the relation between two programs: a connection or, with SRD, their two endpoints.
// It belongs to the engine's goroutine.
type Link struct {
	LinkConfig
	e    *End
	to   operations       // at the peer
	Conn *rdma.Connection // nil with SRD
	peer *rdma.Peer       // nil with connections

	remote *mmap.Map // the peer's memory
	owned  bool      // this link closes it

	mem            *mmap.Map // of the end, or of this link only
	area, peerArea int       // offsets
	key, peerKey   uint64    // of the data of each direction
	workers        [workers]worker
	peerPieces     [workers]int // the peer's pieces so far
	Ops            int
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

// Connect makes the link of a connection in a free area of the end's memory. remote is the peer's
// memory; nil: the peer tells.
func (e *End) Connect(conn *rdma.Connection, remote *mmap.Map, cfg LinkConfig) (*Link, error) {
	l, err := e.newLink(cfg, e.Mem)
	if err != nil {
		return nil, err
	}
	l.to, l.Conn, l.remote = target[*rdma.Connection]{e.tasks, conn}, conn, remote
	conn.SetUserData(l)
	return l, nil
}

// Meet makes the link with an SRD endpoint. The client says hello. At the server each link has
// memory of its own: a client that was stopped and given up may write when it resumes, and only a
// key that is no longer valid prevents that.
func (e *End) Meet(peer *rdma.Peer, cfg LinkConfig) (l *Link, err error) {
	mem := e.Mem
	if !cfg.First {
		if old, ok := peer.UserData().(*Link); ok { // of a dead client at the same address
			peer.SetUserData(nil)
			old.GiveUp(errors.New("another client uses its address"))
		}
		if mem, err = mmap.Alloc(e.Device, e.area(1), allPermissions); err != nil {
			return nil, err
		}
		copy(mem.Bytes(), e.Mem.Bytes()[:e.fixedSize()])
	}
	if l, err = e.newLink(cfg, mem); err != nil {
		return nil, err
	}
	l.to, l.peer, l.ready = target[*rdma.Peer]{e.datagramTasks, peer}, peer, true
	peer.SetUserData(l)
	e.Stats.Connections++
	return l, nil
}

func (e *End) newLink(cfg LinkConfig, mem *mmap.Map) (*Link, error) {
	l := &Link{LinkConfig: cfg, e: e, mem: mem, area: e.area(0)}
	if mem == e.Mem {
		if len(e.areas) == 0 {
			return nil, fmt.Errorf("no area is free: there are %d links", len(e.Links))
		}
		l.area = e.area(e.areas[len(e.areas)-1])
		e.areas = e.areas[:len(e.areas)-1]
	}
	l.key, l.peerKey = pattern.Key(e.Seed, cfg.Name, cfg.First), pattern.Key(e.Seed, cfg.Name, !cfg.First)
	for i := range l.workers {
		l.workers[i] = worker{link: l, number: i, at: l.area + i*e.workerSize()}
		clear(l.workers[i].cells()[:originalAt])
	}
	e.Links[l] = true
	return l, nil
}

func (l *Link) String() string {
	if l.Conn != nil {
		return fmt.Sprintf("link %v on %v", l.Name, l.Conn)
	}
	return fmt.Sprintf("link %v with %v", l.Name, l.peer)
}

// Hello tells the peer which area it may use, and of which memory.
func (l *Link) Hello() {
	e := l.e
	desc, err := l.mem.Export(e.Device)
	if err != nil {
		l.Fail(err)
		return
	}
	at := l.workers[0].cellsAt() + helloAt
	l.send(bufinv.Source(l.mem, at, copy(l.mem.Bytes()[at:], desc)), msgHello, (l.area-e.area(0))/(e.area(1)-e.area(0)))
}

// hello takes what the peer's Hello has sent.
func (l *Link) hello(m *rdma.Message, area int) {
	if l.remote == nil {
		remote, err := mmap.Import(l.e.Device, m.Bytes())
		if err != nil {
			l.e.Wrong(fmt.Errorf("%v: the peer's memory: %w", l, err))
			return
		}
		l.remote, l.owned = remote, true
	}
	l.gotHello, l.peerArea = true, l.e.area(area)
	if l.Conn == nil && !l.First {
		l.Hello()
	}
	l.begin()
}

// begin starts the work once both ends are ready.
func (l *Link) begin() {
	if !l.ready || !l.gotHello {
		return
	}
	if l.First && l.e.Leaving != nil && l.e.Leaving() {
		l.finishing = true
	}
	l.work()
}

// work lets the workers that do nothing begin.
func (l *Link) work() {
	for i := range l.workers {
		if s := &l.workers[i]; !s.busy {
			s.next()
		}
	}
}

// working reports whether workers may start operations.
func (l *Link) working() bool {
	return l.ready && l.gotHello && !l.finishing && !l.finished && !l.failed && !l.e.paused
}

func (l *Link) busy() bool {
	for i := range l.workers {
		if l.workers[i].busy {
			return true
		}
	}
	return false
}

// isIdle reports whether the link is one that stays, and is idle.
func (l *Link) isIdle() bool {
	return l.Stays && l.gotHello && !l.finishing && !l.failed && l.inFlight == 0 && !l.busy()
}

// received handles a message of the peer.
func (l *Link) received(m *rdma.Message) {
	e := l.e
	imm, ok := m.Imm()
	what, number := int(imm>>24), int(imm&(1<<24-1))
	switch {
	case !ok && m.Length() > 0:
		l.compare(m, int(m.Bytes()[0]), m.Bytes()[1:])
	case what == msgData:
		l.compare(m, number, m.Bytes())
	case what == msgWritten && number < workers && m.Length() <= e.MaxData:
		if l.compare(m, number, l.workers[number].target()[:m.Length()]) && !l.failed && !l.finished {
			l.send(nil, msgChecked, number)
		}
	case what == msgHello && !l.gotHello:
		l.hello(m, number)
	case what == msgChecked && number < workers:
		l.workers[number].checked()
	case what == msgDone:
		l.peerDone = true
		l.Finish()
	default:
		e.Wrong(fmt.Errorf("%v: a %v is invalid: immediate %#x, %d bytes", l, m.Opcode(), imm, m.Length()))
	}
}

// compare checks every byte of a piece from the peer's worker.
func (l *Link) compare(m *rdma.Message, number int, got []byte) bool {
	if number >= workers {
		l.e.Wrong(fmt.Errorf("%v: a %v is of worker %d, and there are %d", l, m.Opcode(), number, workers))
		return false
	}
	l.peerPieces[number]++
	if err := pattern.Check(got, l.peerKey+uint64(number), l.peerPieces[number]*stride); err != nil {
		l.e.Wrong(fmt.Errorf("%v: %v %d of worker %d: %w", l, m.Opcode(), l.peerPieces[number], number, err))
		return false
	}
	l.e.Stats.Verified++
	return true
}

// send sends a message with an immediate, outside of the workers.
func (l *Link) send(src *bufinv.Buf, what, number int) {
	task, err := l.to.SendImm(src, immediate(what, number))
	if err == nil {
		task.SetUserData(l)
	}
	if err = pe.SubmitOrFree(task, err); err != nil {
		l.Fail(fmt.Errorf("send %#x: %w", immediate(what, number), err))
		return
	}
	l.inFlight++
}

// Finish ends the work and then, together with the peer, the link.
func (l *Link) Finish() {
	l.finishing = true
	l.check()
}

// Abandon ends the link at once, during the work.
func (l *Link) Abandon() {
	l.finishing, l.finished = true, true
	l.stopWaiting()
	if l.Conn != nil {
		l.e.Check(l.Conn.Close())
	}
	l.check()
}

// GiveUp ends a link whose peer is known to be gone.
func (l *Link) GiveUp(err error) {
	l.finished = true
	l.Fail(err)
}

func (l *Link) stopWaiting() {
	for i := range l.workers {
		l.workers[i].stopWaiting()
	}
}

// Fail is called with every failure of the link.
func (l *Link) Fail(err error) {
	if l.failed {
		return
	}
	l.failed = true
	l.stopWaiting()
	abrupt := l.Abrupt && (errors.Is(err, rdma.ErrPeerClosed) || errors.Is(err, rdma.ErrRetryExceeded) || errors.Is(err, rdma.ErrTimeout))
	switch {
	case l.finished:
	case abrupt:
		l.e.Stats.Abrupt++
	default:
		l.e.Lost(l, err)
	}
	l.check()
}

// Over reports whether the link has failed, or the work is done.
func (l *Link) Over() bool { return l.failed || l.finished }

// check takes the next step towards the end of the link that is possible now.
func (l *Link) check() {
	if l.ended || l.inFlight > 0 || l.busy() {
		return
	}
	switch {
	case l.Conn == nil && l.Over(), l.Conn != nil && l.closed:
		l.end()
	case l.Over() || l.Conn != nil && l.Conn.State() != rdma.Ready:
		// The callback of the connection will report Closed.
	case l.finishing && l.gotHello && !l.done && (l.First || l.peerDone):
		l.done = true
		l.finished = !l.First
		l.send(nil, msgDone, 0)
	case l.done && l.peerDone && l.First:
		l.finished = true
		if l.Conn != nil {
			l.e.Check(l.Conn.Close())
		}
		l.check()
	}
}

// end releases what the link holds.
func (l *Link) end() {
	e := l.e
	l.ended = true
	if l.peer != nil && l.peer.UserData() == l {
		e.Check(l.peer.Forget())
	}
	if l.owned {
		e.Check(l.remote.Close())
	}
	delete(e.Links, l)
	if l.mem == e.Mem {
		e.areas = append(e.areas, (l.area-e.area(0))/(e.area(1)-e.area(0)))
	} else {
		e.Check(l.mem.Close())
	}
	if e.Ended != nil {
		e.Ended(l)
	}
}

// operations are the operations that connections and SRD peers have in common.
type operations interface {
	Send(src *bufinv.Buf) (*rdma.Task, error)
	SendImm(src *bufinv.Buf, imm uint32) (*rdma.Task, error)
	Read(src, dst *bufinv.Buf) (*rdma.Task, error)
	Write(src, dst *bufinv.Buf) (*rdma.Task, error)
	WriteImm(src, dst *bufinv.Buf, imm uint32) (*rdma.Task, error)
}

// target is a connection or a peer, with the pool of tasks for it.
type target[T any] struct {
	tasks interface {
		Send(to T, src *bufinv.Buf) (*rdma.Task, error)
		SendImm(to T, src *bufinv.Buf, imm uint32) (*rdma.Task, error)
		Read(to T, src, dst *bufinv.Buf) (*rdma.Task, error)
		Write(to T, src, dst *bufinv.Buf) (*rdma.Task, error)
		WriteImm(to T, src, dst *bufinv.Buf, imm uint32) (*rdma.Task, error)
	}
	to T
}

func (t target[T]) Send(src *bufinv.Buf) (*rdma.Task, error) { return t.tasks.Send(t.to, src) }
func (t target[T]) SendImm(src *bufinv.Buf, imm uint32) (*rdma.Task, error) {
	return t.tasks.SendImm(t.to, src, imm)
}
func (t target[T]) Read(src, dst *bufinv.Buf) (*rdma.Task, error) {
	return t.tasks.Read(t.to, src, dst)
}
func (t target[T]) Write(src, dst *bufinv.Buf) (*rdma.Task, error) {
	return t.tasks.Write(t.to, src, dst)
}
func (t target[T]) WriteImm(src, dst *bufinv.Buf, imm uint32) (*rdma.Task, error) {
	return t.tasks.WriteImm(t.to, src, dst, imm)
}

// Describe returns what the links are waiting for, to find the reason of a hang.
func (e *End) Describe() (err error) {
	for l := range e.Links {
		if !l.isIdle() {
			err = errors.Join(err, errors.New(l.describe()))
		}
	}
	if e.Datagrams != nil {
		return err
	}
	if conns := e.Connections.List(); len(conns) != len(e.Links) {
		for _, conn := range conns {
			err = errors.Join(err, fmt.Errorf("%v is %v: %w", conn, conn.State(), conn.Err()))
		}
	}
	return err
}

func (l *Link) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v:", l)
	if l.Conn != nil {
		fmt.Fprintf(&b, " %v", l.Conn.State())
	}
	for _, is := range []struct {
		name string
		so   bool
	}{{"ready", l.ready}, {"greeted", l.gotHello}, {"leaving", l.finishing}, {"done", l.done}, {"heard", l.peerDone},
		{"over", l.finished}, {"failed", l.failed}, {"closed", l.closed}} {
		if is.so {
			b.WriteString(" " + is.name)
		}
	}
	fmt.Fprintf(&b, ", %d tasks, %d operations of %d", l.inFlight, l.Ops, l.Budget)
	for i := range l.workers {
		if s := &l.workers[i]; s.busy {
			fmt.Fprintf(&b, ", worker %d: %s of %d bytes, waits %d", i, OpNames[s.op], s.length, s.waitsFor)
		}
	}
	return b.String()
}
