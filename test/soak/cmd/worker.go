package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/verbena-rdma/verbena/rdma"
)

// worker carries out one operation at a time on a link, and checks the result.
type worker struct {
	link   *link
	number int
	at     int // offset of its memory; the peer's worker has the same offset in the peer's area
	busy   bool

	op          int
	then        func(*rdma.Task) error // checks the result when the task has completed
	onCompleted func()                 // called after the task, instead of the next operation
	pieces      uint64                 // pieces that the peer checks
	writes      uint64                 // writes that the peer does not check
	length      int
	waitsFor    int    // for the completion, and for msgChecked of the peer
	sum         uint64 // the peer's first cell
	cell        uint64 // the peer's second
}

// maxPause is the longest pause between two operations of a link that stays.
const maxPause = 10 * time.Millisecond

// next begins the next operation, if there is one.
func (s *worker) next() {
	l := s.link
	s.busy = false
	if sabotage != "" && l.sabotaged() {
		return
	}
	if l.budget > 0 && l.ops >= l.budget && l.first && !l.finishing && !l.failed {
		if l.abrupt {
			l.abandon()
		} else {
			l.finish()
		}
		return
	}
	if !l.working() {
		l.check()
		return
	}
	s.busy = true
	if !l.steady {
		s.work()
		return
	}
	l.e.after(time.Duration(l.e.rng.Int64N(int64(maxPause))), func() {
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

// size draws a number of bytes: all orders of magnitude are equally likely.
func size(rng *rand.Rand, most int) int {
	return max(1, min(most, int(math.Exp(rng.Float64()*math.Log(float64(most)+1)))))
}

// work begins an operation.
func (s *worker) work() {
	l, e := s.link, s.link.e
	mem, source, peer := l.mem, s.at+sourceAt, l.peerArea+s.number*workerSize
	s.op = choose(e.rng, l.conn != nil)
	s.length, s.onCompleted = size(e.rng, maxData), nil
	switch s.op {
	case opWrite:
		s.writes++
		piece := mem.Bytes()[source:][:s.length]
		e.pattern.fill(piece, ^(l.key + uint64(s.number)), s.writes)
		s.then, s.onCompleted = nil, s.readBack
		s.submit(l.to.write(e.bufs.Source(mem, source, s.length), e.bufs.Target(l.remote, peer+targetAt, s.length)))
	case opWriteImm:
		s.piece(source, s.length)
		s.waitsFor = 2
		s.then = nil
		s.submit(l.to.writeImm(e.bufs.Source(mem, source, s.length), e.bufs.Target(l.remote, peer+targetAt, s.length),
			immediate(msgWritten, s.number)))
	case opRead:
		s.read(e.rng.IntN(fixedSize - s.length))
	case opSend:
		s.length = 1 + size(e.rng, e.maxMessage-1)
		mem.Bytes()[s.at+messageAt] = byte(s.number)
		s.piece(s.at+messageAt+1, s.length-1)
		s.then = nil
		s.submit(l.to.send(e.bufs.Source(mem, s.at+messageAt, s.length)))
	case opSendImm:
		s.length = size(e.rng, e.maxMessage)
		s.piece(s.at+messageAt, s.length)
		s.then = nil
		s.submit(l.to.sendImm(e.bufs.Source(mem, s.at+messageAt, s.length), immediate(msgData, s.number)))
	case opFetchAdd:
		s.length = 8
		add := e.rng.Uint64()
		s.then = func(t *rdma.Task) error {
			was, want := t.Original(), s.sum
			s.sum += add
			return s.original(was, want)
		}
		s.submitAtomic(e.tasks.FetchAdd(l.conn, e.bufs.Target(l.remote, peer+cellsAt, 8), add))
	case opCompareSwap:
		s.length = 8
		compare, swap := s.cell, e.rng.Uint64()
		if e.rng.IntN(4) == 0 {
			compare++ // no match: nothing is stored
		}
		s.then = func(t *rdma.Task) error {
			was, want := t.Original(), s.cell
			if compare == s.cell {
				s.cell = swap
			}
			return s.original(was, want)
		}
		s.submitAtomic(e.tasks.CompareSwap(l.conn, e.bufs.Target(l.remote, peer+cellsAt+8, 8), compare, swap))
	}
}

// piece fills the next piece, which the peer checks.
func (s *worker) piece(at, n int) {
	s.pieces++
	b := s.link.mem.Bytes()[at:][:n]
	s.link.e.pattern.fill(b, s.link.key+uint64(s.number), s.pieces)
	if sabotage == sabotageData && s.link.first && !s.link.steady {
		b[n-1] ^= 0x10
	}
}

// read reads bytes of the peer that never change. This end has the same bytes.
func (s *worker) read(from int) {
	l, e := s.link, s.link.e
	mem := l.mem
	s.then = func(t *rdma.Task) error {
		return same(t.Destination().Bytes(), mem.Bytes()[from:][:s.length])
	}
	s.submit(l.to.read(e.bufs.Source(l.remote, from, s.length), e.bufs.Target(mem, s.at+backAt, s.length)))
}

// readBack reads the data that was written, and compares it.
func (s *worker) readBack() {
	l, e := s.link, s.link.e
	mem := l.mem
	s.onCompleted = nil
	s.then = func(t *rdma.Task) error {
		got := t.Destination().Bytes()
		if err := same(got, mem.Bytes()[s.at+sourceAt:][:s.length]); err != nil {
			return fmt.Errorf("%w; it is %s, but this was write %d of worker %d, through %v", err, s.describeData(got), s.writes, s.number, s.path())
		}
		return nil
	}
	s.submit(l.to.read(e.bufs.Source(l.remote, l.peerArea+s.number*workerSize+targetAt, s.length), e.bufs.Target(mem, s.at+backAt, s.length)))
}

// path returns the path of the link's packets.
func (s *worker) path() string {
	if s.link.conn == nil {
		return "datagrams"
	}
	return s.link.conn.Path().String()
}

// describeData identifies wrong data, if it is from this link.
func (s *worker) describeData(got []byte) string {
	l := s.link
	is := func(key, piece uint64) bool { return len(got) >= 8 && l.e.pattern.check(got[:8], key, piece) == nil }
	if len(got) >= 8 {
		if binary.LittleEndian.Uint64(got) == 0 {
			return "zero"
		}
		if at := bytes.Index(l.mem.Bytes()[:fixedSize], got[:8]); at >= 0 {
			return fmt.Sprintf("the constant data, from byte %d on", at)
		}
	}
	for i := range l.workers {
		o := &l.workers[i]
		for n := uint64(1); n <= o.writes; n++ {
			if is(^(l.key + uint64(i)), n) {
				return fmt.Sprintf("write %d of worker %d", n, i)
			}
		}
		for n := uint64(1); n <= o.pieces; n++ {
			if is(l.key+uint64(i), n) {
				return fmt.Sprintf("piece %d of worker %d", n, i)
			}
		}
	}
	return "from no worker of this link"
}

// original checks the original value of an atomic operation, in the task and in memory.
func (s *worker) original(was, want uint64) error {
	stored := binary.NativeEndian.Uint64(s.link.mem.Bytes()[s.at+originalAt:])
	if was != want || stored != want {
		return fmt.Errorf("the data is wrong: the peer's value was %#x, %#x was stored in memory, want %#x", was, stored, want)
	}
	return nil
}

// submitAtomic also lets the original value be stored in memory.
func (s *worker) submitAtomic(t *rdma.Task, err error) {
	if err == nil {
		s.link.e.check(t.SetResult(s.link.e.bufs.Target(s.link.mem, s.at+originalAt, 8)))
	}
	s.submit(t, err)
}

// submit submits a newly allocated task.
func (s *worker) submit(t *rdma.Task, err error) {
	if err == nil {
		t.SetUserData(s)
		if err = t.Submit(); err != nil {
			s.link.e.check(t.Free())
		}
	}
	if err != nil {
		s.busy, s.waitsFor = false, 0
		s.link.fail(fmt.Errorf("%s: %w", opNames[s.op], err))
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
			e.wrong(fmt.Errorf("%v: %s of %d bytes: %w", l, opNames[s.op], s.length, wrong))
		}
	}
	e.check(t.Free())
	switch {
	case err != nil:
		s.busy, s.waitsFor = false, 0
		l.fail(err)
		l.check()
	case l.failed, l.finished:
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
		if !s.link.failed && !s.link.finished {
			s.link.e.wrong(fmt.Errorf("%v: the peer confirmed a write that was not made", s.link))
		}
		return
	}
	if s.waitsFor--; s.waitsFor == 0 {
		s.finish()
	}
}

func (s *worker) finish() {
	l := s.link
	l.ops++
	l.e.stats.Ops[s.op]++
	l.e.stats.Bytes += uint64(s.length)
	s.next()
}
