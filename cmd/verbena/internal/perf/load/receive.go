package load

import (
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// postReceives posts the receives of an end that takes messages. Receives for sends have room
// for the largest size.
func (w *worker) postReceives() error {
	if w.receives == nil {
		return nil
	}
	for i := range w.plan.RecvDepth {
		var room *bufinv.Buf
		if w.plan.Test.Op == plan.Send {
			room = bufinv.Target(w.local, w.layout.InOffset(i%w.layout.In), w.layout.Stride)
		}
		t, err := w.receives.Alloc(room)
		if err != nil {
			return err
		}
		if err := t.Submit(pe.Aggregate); err != nil {
			return err
		}
	}
	return nil
}

// received is called for each message.
func (w *worker) received(t *rdma.ReceiveTask) {
	if w.plan.Verify && w.plan.Test.Op == plan.Send {
		w.checkMessage(t)
	}
	if err := t.Submit(pe.Aggregate); err != nil {
		w.taskFailed(err)
		return
	}
	w.load.arrived()
}
