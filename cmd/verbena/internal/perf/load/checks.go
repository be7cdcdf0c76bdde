package load

import (
	"encoding/binary"
	"fmt"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
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
			pattern(mem[l.OutOffset(slot):][:w.size], w.seed(w.server, slot))
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
		w.checks.add("the data that was read", compare(got, w.seed(!w.server, slot)))
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
	w.checks.add("the data of a message", compare(got, w.seed(!w.server, 0)))
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
		w.checks.add("the data that the peer wrote", compare(mem[w.layout.InOffset(slot):][:n], w.seed(!w.server, slot)))
	}
}

// pattern fills memory with pseudo-random data from a seed.
func pattern(b []byte, seed uint64) {
	n := len(b) &^ 7
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], mix(seed, i))
	}
	if n < len(b) {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], mix(seed, n))
		copy(b[n:], last[:])
	}
}

// compare returns the offset of the first byte that differs from the pattern, or -1.
func compare(b []byte, seed uint64) int {
	n := len(b) &^ 7
	for i := 0; i < n; i += 8 {
		if got, want := binary.LittleEndian.Uint64(b[i:]), mix(seed, i); got != want {
			for got&0xff == want&0xff {
				got, want, i = got>>8, want>>8, i+1
			}
			return i
		}
	}
	var last [8]byte
	binary.LittleEndian.PutUint64(last[:], mix(seed, n))
	for i := n; i < len(b); i++ {
		if b[i] != last[i-n] {
			return i
		}
	}
	return -1
}

// mix returns the word of the pattern at an offset (the finalizer of SplitMix64).
func mix(seed uint64, off int) uint64 {
	z := seed*0x9e3779b97f4a7c15 + uint64(off)*0xd1342543de82ef95 + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
