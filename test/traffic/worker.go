package traffic

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/verbena-rdma/verbena/internal/pattern"
	"github.com/verbena-rdma/verbena/rdma"
)

// The kinds of operations.
const (
	opWrite = iota
	opWriteImm
	opRead
	opSend
	opSendImm
	opCompareSwap
	opFetchAdd
	opDatagram
	opCount
)

// OpNames are the names of the kinds of operations.
var OpNames = [opCount]string{"write, read back", "write with immediate", "read", "send", "send with immediate",
	"compare-and-swap", "fetch-and-add", "datagram and echo"}

// weights has the relative frequencies of the operations.
var weights = [opCount]int{opWrite: 6, opWriteImm: 5, opRead: 3, opSend: 5, opSendImm: 3, opCompareSwap: 2, opFetchAdd: 2}

func choose(rng *rand.Rand, atomics bool) int {
	n := 0
	for op, weight := range weights {
		if atomics || op != opCompareSwap && op != opFetchAdd {
			n += weight
		}
	}
	n = rng.IntN(n)
	for op, weight := range weights {
		if n -= weight; n < 0 {
			return op
		}
	}
	return opWrite
}

// Size draws a number from 1 to most: all orders of magnitude are equally likely.
func Size(rng *rand.Rand, most int) int {
	return max(1, min(most, int(math.Exp(rng.Float64()*math.Log(float64(most)+1)))))
}

// worker carries out one operation at a time on a link, and checks the result.
//
// Its memory has data to be written, data that was read back, a target for the peer's worker of
// the same number, a message, and cells.
type worker struct {
	link   *Link
	number int
	at     int // offset of its memory; the peer's worker has the same offset in the peer's area
	busy   bool

	op          int
	then        func(*rdma.Task) error // checks the result when the task has completed
	onCompleted func()                 // called after the task, instead of the next operation
	pieces      int                    // pieces that the peer checks
	writes      int                    // writes that the peer does not check
	length      int
	waitsFor    int    // for the completion, and for msgChecked of the peer
	sum         uint64 // the peer's first cell
	cell        uint64 // the peer's second
}

func (s *worker) backAt() int    { return s.at + s.link.e.MaxData }
func (s *worker) targetAt() int  { return s.at + 2*s.link.e.MaxData }
func (s *worker) messageAt() int { return s.at + 3*s.link.e.MaxData }
func (s *worker) cellsAt() int   { return s.messageAt() + maxMessage }

func (s *worker) target() []byte { return s.link.mem.Bytes()[s.targetAt():] }
func (s *worker) cells() []byte  { return s.link.mem.Bytes()[s.cellsAt():][:cellsSize] }

// theirs returns the peer's offset for one of this end's.
func (s *worker) theirs(at int) int { return at - s.link.area + s.link.peerArea }

// next begins the next operation, if there is one.
func (s *worker) next() {
	l := s.link
	s.busy = false
	if f := l.e.Tamper; f != nil {
		f(l, nil)
	}
	if l.Budget > 0 && l.Ops >= l.Budget && l.First && !l.finishing && !l.failed {
		if l.Abrupt {
			l.Abandon()
		} else {
			l.Finish()
		}
		return
	}
	if !l.working() {
		l.check()
		return
	}
	s.busy = true
	if l.Pause == 0 {
		s.work()
		return
	}
	l.e.After(l.Pause, func() {
		if l.working() {
			s.work()
		} else {
			s.busy = false
			l.check()
		}
	})
}

// stopWaiting stops waiting for the peer of a link that has failed or was abandoned.
func (s *worker) stopWaiting() {
	if s.waitsFor == 1 {
		s.waitsFor, s.busy = 0, false
	}
}

// work begins an operation.
func (s *worker) work() {
	l, e := s.link, s.link.e
	mem := l.mem
	s.op = choose(e.Rand, l.Conn != nil)
	s.length, s.then, s.onCompleted = Size(e.Rand, e.MaxData), nil, nil
	switch s.op {
	case opWrite:
		s.writes++
		pattern.Fill(mem.Bytes()[s.at:][:s.length], s.writeKey(), s.writes*stride)
		s.onCompleted = s.readBack
		s.submit(l.to.Write(e.bufs.Source(mem, s.at, s.length), e.bufs.Target(l.remote, s.theirs(s.targetAt()), s.length)))
	case opWriteImm:
		s.piece(s.at, s.length)
		s.waitsFor = 2
		s.submit(l.to.WriteImm(e.bufs.Source(mem, s.at, s.length), e.bufs.Target(l.remote, s.theirs(s.targetAt()), s.length),
			immediate(msgWritten, s.number)))
	case opRead: // bytes that never change
		from := e.Rand.IntN(e.fixedSize() - s.length)
		s.read(from, func(got []byte) error { return pattern.Check(got, e.fixedKey, from) })
	case opSend:
		s.length = 1 + Size(e.Rand, e.maxMessage-1)
		mem.Bytes()[s.messageAt()] = byte(s.number)
		s.piece(s.messageAt()+1, s.length-1)
		s.submit(l.to.Send(e.bufs.Source(mem, s.messageAt(), s.length)))
	case opSendImm:
		s.length = Size(e.Rand, e.maxMessage)
		s.piece(s.messageAt(), s.length)
		s.submit(l.to.SendImm(e.bufs.Source(mem, s.messageAt(), s.length), immediate(msgData, s.number)))
	case opFetchAdd:
		s.length = 8
		add := e.Rand.Uint64()
		s.then = func(t *rdma.Task) error {
			want := s.sum
			s.sum += add
			return s.original(t.Original(), want)
		}
		s.submitAtomic(e.tasks.FetchAdd(l.Conn, e.bufs.Target(l.remote, s.theirs(s.cellsAt()), 8), add))
	case opCompareSwap:
		s.length = 8
		compare, swap := s.cell, e.Rand.Uint64()
		if e.Rand.IntN(4) == 0 {
			compare++ // no match: nothing is stored
		}
		s.then = func(t *rdma.Task) error {
			want := s.cell
			if compare == s.cell {
				s.cell = swap
			}
			return s.original(t.Original(), want)
		}
		s.submitAtomic(e.tasks.CompareSwap(l.Conn, e.bufs.Target(l.remote, s.theirs(s.cellsAt()+8), 8), compare, swap))
	}
}

// pieceKey is the key of the data that the peer checks, and writeKey that of the data that this
// end reads back.
func (s *worker) pieceKey() uint64 { return s.link.key + uint64(s.number) }
func (s *worker) writeKey() uint64 { return ^s.pieceKey() }

// piece fills the next piece, which the peer checks.
func (s *worker) piece(at, n int) {
	s.pieces++
	b := s.link.mem.Bytes()[at:][:n]
	pattern.Fill(b, s.pieceKey(), s.pieces*stride)
	if f := s.link.e.Tamper; f != nil {
		f(s.link, b)
	}
}

// read reads bytes of the peer.
func (s *worker) read(from int, check func(got []byte) error) {
	l, e := s.link, s.link.e
	s.then = func(t *rdma.Task) error {
		if got := t.Destination().Bytes(); len(got) != s.length {
			return fmt.Errorf("the data is wrong: received %d bytes, want %d", len(got), s.length)
		} else {
			return check(got)
		}
	}
	s.submit(l.to.Read(e.bufs.Source(l.remote, from, s.length), e.bufs.Target(l.mem, s.backAt(), s.length)))
}

// readBack reads the data that was written, and checks it.
func (s *worker) readBack() {
	s.onCompleted = nil
	s.read(s.theirs(s.targetAt()), func(got []byte) error {
		if err := pattern.Check(got, s.writeKey(), s.writes*stride); err != nil {
			return fmt.Errorf("%w; it is %s, but this was write %d of worker %d, through %v", err, s.describeData(got), s.writes, s.number, s.path())
		}
		return nil
	})
}

// path returns the path of the link's packets.
func (s *worker) path() string {
	if s.link.Conn == nil {
		return "datagrams"
	}
	return s.link.Conn.Counters().Path.String()
}

// describeData identifies wrong data, if it is from this link.
func (s *worker) describeData(got []byte) string {
	l := s.link
	if len(got) < 8 {
		return "too short to be recognized"
	}
	got = got[:8]
	if binary.LittleEndian.Uint64(got) == 0 {
		return "zero"
	}
	if at := bytes.Index(l.mem.Bytes()[:l.e.fixedSize()], got); at >= 0 {
		return fmt.Sprintf("the constant data, from byte %d on", at)
	}
	for i := range l.workers {
		o := &l.workers[i]
		for n := 1; n <= max(o.writes, o.pieces); n++ {
			switch {
			case pattern.First(got, o.writeKey(), n*stride) < 0:
				return fmt.Sprintf("write %d of worker %d", n, i)
			case pattern.First(got, o.pieceKey(), n*stride) < 0:
				return fmt.Sprintf("piece %d of worker %d", n, i)
			}
		}
	}
	return "from no worker of this link"
}

// original checks the original value of an atomic operation, in the task and in memory.
func (s *worker) original(was, want uint64) error {
	stored := binary.NativeEndian.Uint64(s.cells()[originalAt:])
	if was != want || stored != want {
		return fmt.Errorf("the data is wrong: the peer's value was %#x, %#x was stored in memory, want %#x", was, stored, want)
	}
	return nil
}

// submitAtomic also lets the original value be stored in memory.
func (s *worker) submitAtomic(t *rdma.Task, err error) {
	if err == nil {
		s.link.e.Check(t.SetResult(s.link.e.bufs.Target(s.link.mem, s.cellsAt()+originalAt, 8)))
	}
	s.submit(t, err)
}

// submit submits a newly allocated task.
func (s *worker) submit(t *rdma.Task, err error) {
	if err == nil {
		t.SetUserData(s)
		if err = t.Submit(); err != nil {
			s.link.e.Check(t.Free())
		}
	}
	if err != nil {
		s.busy, s.waitsFor = false, 0
		s.link.Fail(fmt.Errorf("%s: %w", OpNames[s.op], err))
		s.link.check()
		return
	}
	s.link.inFlight++
}

// done handles a task that has completed or failed.
func (s *worker) done(t *rdma.Task, err error) {
	l, e := s.link, s.link.e
	l.inFlight--
	if err == nil && s.then != nil {
		if wrong := s.then(t); wrong != nil {
			e.Wrong(fmt.Errorf("%v: %s of %d bytes: %w", l, OpNames[s.op], s.length, wrong))
		}
	}
	e.Check(t.Free())
	switch {
	case err != nil:
		s.busy, s.waitsFor = false, 0
		l.Fail(err)
		l.check()
	case l.Over():
		s.busy, s.waitsFor = false, 0
		l.check()
	case s.onCompleted != nil:
		s.onCompleted()
	case s.waitsFor > 0:
		s.checked()
	default:
		s.finish()
	}
}

// checked is called for each of the two events that end a write with immediate.
func (s *worker) checked() {
	if s.waitsFor == 0 {
		if !s.link.Over() {
			s.link.e.Wrong(fmt.Errorf("%v: the peer confirmed a write that was not made", s.link))
		}
		return
	}
	if s.waitsFor--; s.waitsFor == 0 {
		s.finish()
	}
}

func (s *worker) finish() {
	l := s.link
	l.Ops++
	l.e.Stats.Ops[s.op]++
	l.e.Stats.Bytes += uint64(s.length)
	s.next()
}

// Stats counts what an end has done and verified so far.
type Stats struct {
	Ops         [opCount]uint64
	Bytes       uint64 // moved by this end's operations
	Verified    uint64 // messages and writes with immediate of peers
	Connections uint64 // made; with datagrams, endpoints met
	Abrupt      uint64 // ended by the client during the work
	Lost        uint64 // datagrams without echo
}

// Add adds other counts.
func (s *Stats) Add(o *Stats) {
	for i := range s.Ops {
		s.Ops[i] += o.Ops[i]
	}
	s.Bytes += o.Bytes
	s.Verified += o.Verified
	s.Connections += o.Connections
	s.Abrupt += o.Abrupt
	s.Lost += o.Lost
}

// Total is the number of all operations.
func (s *Stats) Total() (n uint64) {
	for _, v := range s.Ops {
		n += v
	}
	return n
}
