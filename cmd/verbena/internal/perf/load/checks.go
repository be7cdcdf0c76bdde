package load

import (
	"fmt"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/internal/pattern"
	"github.com/verbena-rdma/verbena/rdma"
)

// checks is the result of verifying the data of a step.
type checks struct {
	checked int64  // pieces of data, or values of atomics
	damage  string // the first difference; empty: none
}

func (c *checks) add(what string, at int) {
	c.checked++
	if at >= 0 && c.damage == "" {
		c.damage = fmt.Sprintf("%s: first difference at byte %d", what, at)
	}
}

// slots is the memory of an engine at one end, and what was found in it.
type slots struct {
	plan   *plan.Plan
	server bool
	index  int // of the engine
	layout plan.Layout
	mem    []byte

	step, size int
	checks     checks
}

// seed is the seed of the data that an end sends from a slot in a step. All messages of Send
// have the same data, because the receiver does not learn from which slot a message came.
func (s *slots) seed(server bool, slot int) uint64 {
	if s.plan.Test.Op == plan.Send {
		slot = 0
	}
	seed := uint64(s.step)<<33 | uint64(s.index)<<56 | uint64(slot)<<1
	if server {
		seed |= 1
	}
	return seed
}

// fill writes the initial contents of the memory for a step.
func (s *slots) fill() {
	mem, l := s.mem, &s.layout
	if s.plan.Verify || s.step == 0 {
		for slot := range l.Out {
			pattern.Fill(mem[l.OutOffset(slot):][:s.size], s.seed(s.server, slot), 0)
		}
	}
	// The counter byte of a write latency test, and the words of atomics, start at zero.
	if s.plan.Verify || s.step == 0 || s.plan.Test.EachWay() || s.plan.Test.Op.Atomic() {
		clear(mem[l.InOffset(0):])
	}
}

// checkTask checks the data or the value that a completed request returned.
func (w *worker) checkTask(f *flow, t *rdma.Task) {
	switch t.Operation() {
	case rdma.OpRead:
		slot := w.layout.Slot(f.index, int(f.completed%int64(len(f.tasks))))
		got := w.mem[w.layout.InOffset(slot):][:w.size]
		w.checks.add("the data that was read", pattern.First(got, w.seed(!w.server, slot), 0))
		clear(got) // so that the next read cannot find old data
	case rdma.OpFetchAdd, rdma.OpCompareSwap:
		w.checkValue(t.Original(), f.completed)
	}
}

// checkValue checks the original value that an atomic returned: it shows that each atomic has
// taken effect once, in order.
func (w *worker) checkValue(got uint64, want int64) {
	w.checks.checked++
	if got != uint64(want) && w.checks.damage == "" {
		w.checks.damage = fmt.Sprintf("atomic operation %d returned %d", want, got)
	}
}

// checkMessage checks the length and the data of a received message.
func (w *worker) checkMessage(t *rdma.ReceiveTask) {
	got := t.Destination().Bytes()
	if len(got) != w.size {
		w.checks.checked++
		if w.checks.damage == "" {
			w.checks.damage = fmt.Sprintf("a message has the wrong length of %d bytes", len(got))
		}
		return
	}
	w.checks.add("the data of a message", pattern.First(got, w.seed(!w.server, 0), 0))
	clear(got)
}

// checkWritten checks the data that the peer has written. Call it after the peer has announced
// that it is done.
func (s *slots) checkWritten() {
	op := s.plan.Test.Op
	if !s.plan.Verify || op != plan.Write && op != plan.WriteImm || !s.plan.Active(!s.server) {
		return
	}
	n := s.size
	if s.plan.Test.Kind == plan.Latency && op == plan.Write {
		n-- // the counter byte
	}
	s.check("the data that the peer wrote", n)
}

// check checks n bytes of each destination slot, which the peer has filled.
func (s *slots) check(what string, n int) {
	for slot := range s.layout.In {
		s.checks.add(what, pattern.First(s.mem[s.layout.InOffset(slot):][:n], s.seed(!s.server, slot), 0))
	}
}
