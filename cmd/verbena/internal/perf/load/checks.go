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

// seed is the seed of the data that an end sends from a slot in a step. All messages of Send
// have the same data, because the receiver does not learn from which slot a message came.
func (w *worker) seed(server bool, slot int) uint64 {
	if w.plan.Test.Op == plan.Send {
		slot = 0
	}
	s := uint64(w.step)<<33 | uint64(w.index)<<56 | uint64(slot)<<1
	if server {
		s |= 1
	}
	return s
}

// fill writes the initial contents of the memory for a step.
func (w *worker) fill() {
	mem, l := w.local.Bytes(), &w.layout
	if w.plan.Verify || w.step == 0 {
		for slot := range l.Out {
			pattern.Fill(mem[l.OutOffset(slot):][:w.size], w.seed(w.server, slot), 0)
		}
	}
	// The counter byte of a write latency test, and the words of atomics, start at zero.
	if w.plan.Verify || w.step == 0 || w.plan.Test.EachWay() || w.plan.Test.Op.Atomic() {
		clear(mem[l.InOffset(0):])
	}
}

// checkTask checks the data or the value that a completed request returned.
func (w *worker) checkTask(f *flow, t *rdma.Task) {
	switch t.Operation() {
	case rdma.OpRead:
		slot := w.layout.Slot(f.index, int(f.completed%int64(len(f.tasks))))
		got := w.local.Bytes()[w.layout.InOffset(slot):][:w.size]
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
func (w *worker) checkWritten() {
	op := w.plan.Test.Op
	if !w.plan.Verify || op != plan.Write && op != plan.WriteImm || !w.plan.Active(!w.server) {
		return
	}
	n := w.size
	if w.plan.Test.Kind == plan.Latency && op == plan.Write {
		n-- // the counter byte
	}
	mem := w.local.Bytes()
	for slot := range w.layout.In {
		w.checks.add("the data that the peer wrote", pattern.First(mem[w.layout.InOffset(slot):][:n], w.seed(!w.server, slot), 0))
	}
}
