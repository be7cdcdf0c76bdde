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

// shuttle carries out one operation at a time on a link, and checks the result.
type shuttle struct {
	link   *link
	number int
	at     int // offset of its memory; the peer's shuttle has the same offset in the peer's area
	busy   bool

	op     int
	then   func(*rdma.Task) error // checks the result when the task has completed
	again  func()                 // called after the task, instead of the next operation
	pieces uint64                 // pieces that the peer checks
	writes uint64                 // writes that the peer does not check
	length int
	waits  int    // for the completion, and for sayChecked of the peer
	sum    uint64 // the peer's first cell
	cell   uint64 // the peer's second
}

// longestNap is the longest pause between two operations of a link that stays.
const longestNap = 10 * time.Millisecond

// next begins the next operation, if there is one.
func (s *shuttle) next() {
	l := s.link
	s.busy = false
	if sabotage != "" && l.sabotaged() {
		return
	}
	if l.budget > 0 && l.ops >= l.budget && l.first && !l.leaving && !l.failed {
		if l.rude {
			l.abandon()
		} else {
			l.leave()
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
	l.e.after(time.Duration(l.e.rng.Int64N(int64(longestNap))), func() {
		if l.working() {
			s.work()
		} else {
			s.busy = false
			l.check()
		}
	})
}

// giveUp stops waiting for the peer of a link that has failed or was abandoned.
func (s *shuttle) giveUp() {
	if s.waits == 1 {
		s.waits, s.busy = 0, false
	}
}

// mix has the relative frequencies of the operations.
var mix = [opCount]int{opWrite: 6, opWriteImm: 5, opRead: 3, opSend: 5, opSendImm: 3, opCompareSwap: 2, opFetchAdd: 2}

func choose(rng *rand.Rand, atomics bool) int {
	n := 0
	for op, weight := range mix {
		if atomics || op != opCompareSwap && op != opFetchAdd {
			n += weight
		}
	}
	n = rng.IntN(n)
	for op, weight := range mix {
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
func (s *shuttle) work() {
	l, e := s.link, s.link.e
	mem, source, peer := l.mem, s.at+sourceAt, l.peerArea+s.number*shuttleSize
	s.op = choose(e.rng, l.conn != nil)
	s.length, s.again = size(e.rng, mostData), nil
	switch s.op {
	case opWrite:
		s.writes++
		piece := mem.Bytes()[source:][:s.length]
		e.pattern.fill(piece, ^(l.key + uint64(s.number)), s.writes)
		s.then, s.again = nil, s.readBack
		s.submit(l.to.write(e.bufs.Source(mem, source, s.length), e.bufs.Target(l.remote, peer+targetAt, s.length)))
	case opWriteImm:
		s.piece(source, s.length)
		s.waits = 2
		s.then = nil
		s.submit(l.to.writeImm(e.bufs.Source(mem, source, s.length), e.bufs.Target(l.remote, peer+targetAt, s.length),
			immediate(sayWritten, s.number)))
	case opRead:
		s.read(e.rng.IntN(fixedSize - s.length))
	case opSend:
		s.length = 1 + size(e.rng, e.mostMessage-1)
		mem.Bytes()[s.at+messageAt] = byte(s.number)
		s.piece(s.at+messageAt+1, s.length-1)
		s.then = nil
		s.submit(l.to.send(e.bufs.Source(mem, s.at+messageAt, s.length)))
	case opSendImm:
		s.length = size(e.rng, e.mostMessage)
		s.piece(s.at+messageAt, s.length)
		s.then = nil
		s.submit(l.to.sendImm(e.bufs.Source(mem, s.at+messageAt, s.length), immediate(sayData, s.number)))
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
func (s *shuttle) piece(at, n int) {
	s.pieces++
	b := s.link.mem.Bytes()[at:][:n]
	s.link.e.pattern.fill(b, s.link.key+uint64(s.number), s.pieces)
	if sabotage == sabotageData && s.link.first && !s.link.steady {
		b[n-1] ^= 0x10
	}
}

// read reads bytes of the peer that never change. This end has the same bytes.
func (s *shuttle) read(from int) {
	l, e := s.link, s.link.e
	mem := l.mem
	s.then = func(t *rdma.Task) error {
		return same(t.Destination().Bytes(), mem.Bytes()[from:][:s.length])
	}
	s.submit(l.to.read(e.bufs.Source(l.remote, from, s.length), e.bufs.Target(mem, s.at+backAt, s.length)))
}

// readBack reads the data that was written, and compares it.
func (s *shuttle) readBack() {
	l, e := s.link, s.link.e
	mem := l.mem
	s.again = nil
	s.then = func(t *rdma.Task) error {
		got := t.Destination().Bytes()
		if err := same(got, mem.Bytes()[s.at+sourceAt:][:s.length]); err != nil {
			return fmt.Errorf("%w; it is %s, and this was write %d of shuttle %d, by %v", err, s.whose(got), s.writes, s.number, s.way())
		}
		return nil
	}
	s.submit(l.to.read(e.bufs.Source(l.remote, l.peerArea+s.number*shuttleSize+targetAt, s.length), e.bufs.Target(mem, s.at+backAt, s.length)))
}

// way returns the path of the link's packets.
func (s *shuttle) way() string {
	if s.link.conn == nil {
		return "datagrams"
	}
	return s.link.conn.Path().String()
}

// whose identifies wrong data, if it is from this link.
func (s *shuttle) whose(got []byte) string {
	l := s.link
	is := func(key, piece uint64) bool { return len(got) >= 8 && l.e.pattern.check(got[:8], key, piece) == nil }
	if len(got) >= 8 {
		if binary.LittleEndian.Uint64(got) == 0 {
			return "zero"
		}
		if at := bytes.Index(l.mem.Bytes()[:fixedSize], got[:8]); at >= 0 {
			return fmt.Sprintf("what never changes, from byte %d", at)
		}
	}
	for i := range l.shuttles {
		o := &l.shuttles[i]
		for n := uint64(1); n <= o.writes; n++ {
			if is(^(l.key + uint64(i)), n) {
				return fmt.Sprintf("write %d of shuttle %d", n, i)
			}
		}
		for n := uint64(1); n <= o.pieces; n++ {
			if is(l.key+uint64(i), n) {
				return fmt.Sprintf("piece %d of shuttle %d", n, i)
			}
		}
	}
	return "of nobody on this link"
}

// original checks the original value of an atomic operation, in the task and in memory.
func (s *shuttle) original(was, want uint64) error {
	landed := binary.NativeEndian.Uint64(s.link.mem.Bytes()[s.at+originalAt:])
	if was != want || landed != want {
		return fmt.Errorf("the data is wrong: the peer's value was %#x, %#x has come to memory, and it should be %#x", was, landed, want)
	}
	return nil
}

// submitAtomic also lets the original value be stored in memory.
func (s *shuttle) submitAtomic(t *rdma.Task, err error) {
	if err == nil {
		s.link.e.check(t.SetResult(s.link.e.bufs.Target(s.link.mem, s.at+originalAt, 8)))
	}
	s.submit(t, err)
}

// submit submits a newly allocated task.
func (s *shuttle) submit(t *rdma.Task, err error) {
	if err == nil {
		t.SetUserData(s)
		if err = t.Submit(); err != nil {
			s.link.e.check(t.Free())
		}
	}
	if err != nil {
		s.busy, s.waits = false, 0
		s.link.fail(fmt.Errorf("%s: %w", opNames[s.op], err))
		s.link.check()
		return
	}
	s.link.out++
}

// done handles a task that has completed or failed.
func (s *shuttle) done(t *rdma.Task, err error) {
	l, e := s.link, s.link.e
	l.out--
	if err == nil && s.then != nil {
		if wrong := s.then(t); wrong != nil {
			e.wrong(fmt.Errorf("%v: %s of %d bytes: %w", l, opNames[s.op], s.length, wrong))
		}
	}
	e.check(t.Free())
	switch {
	case err != nil:
		s.busy, s.waits = false, 0
		l.fail(err)
		l.check()
	case l.failed, l.over:
		s.busy, s.waits = false, 0
		l.check()
	case s.again != nil:
		s.again()
	case s.waits > 0:
		s.checked()
	default:
		s.finish()
	}
}

// checked is called for each of the two events that end a write with immediate.
func (s *shuttle) checked() {
	if s.waits == 0 {
		if !s.link.failed && !s.link.over {
			s.link.e.wrong(fmt.Errorf("%v: the peer has checked what was not written", s.link))
		}
		return
	}
	if s.waits--; s.waits == 0 {
		s.finish()
	}
}

func (s *shuttle) finish() {
	l := s.link
	l.ops++
	l.e.stats.Ops[s.op]++
	l.e.stats.Bytes += uint64(s.length)
	s.next()
}
