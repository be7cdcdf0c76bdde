// Command kv_client gets and puts values of kv_server, whose text describes the protocol. It
// works with callbacks: 16 workers, each a small state machine, do one operation at a time. If
// the client knows the slot of a value, a get is one RDMA read, which the server's program
// does not notice. A put is one write with immediate, and its answer. Every value is checked.
package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/kv"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

type client struct {
	*kv.Client
	rng          *rand.Rand
	workers      []*worker
	slots        map[string]uint32 // slots that values were in
	begun, ended uint64            // operations, workers
}

type worker struct {
	*client
	kv.Step
	tag, slot uint32 // the worker's number, shifted; the slot for the next put
	key       string
	off       int // of the worker's own slot in the local memory
	tries     int // attempts to read a value that other clients replace
}

func main() { kv.Main("kv_client", run) }

func run(ctx context.Context, s *sample.Session, c *kv.Client) error {
	p := &client{Client: c, rng: rand.New(rand.NewPCG(c.Seed, 0)), slots: map[string]uint32{}}
	return c.Run(ctx, s, p.answered, func(state pe.State) {
		if state != pe.Running {
			return
		}
		for i := range kv.Workers {
			w := &worker{client: p, Step: c.NewStep(), tag: uint32(i) << 24, off: i * kv.SlotSize}
			p.workers = append(p.workers, w)
			task, err := p.Tasks.SendImm(p.Conn, nil, w.tag) // asks for a slot
			p.RDMA.Fail(w.Ask(task, err, w.granted))
		}
	})
}

func (p *client) answered(m *rdma.Message) {
	if imm, _ := m.Imm(); int(imm>>24) < len(p.workers) {
		p.workers[imm>>24].Answered(imm & kv.NoSlot)
	}
}

// granted is called with a slot for the next put. With NoSlot, that put will be out of bounds.
func (w *worker) granted() error { w.slot = w.Answer; return w.next() }

// next starts the next operation.
func (w *worker) next() error {
	if w.begun == w.N {
		w.ended++
		if w.ended == kv.Workers {
			return w.RDMA.Stop()
		}
		return nil
	}
	w.begun++
	w.key, w.tries = fmt.Sprintf("key %d", w.rng.Uint64N(w.Keys)), 0
	if w.rng.IntN(4) > 0 {
		return w.get()
	}
	// The immediate of a put tells the server that the data is complete.
	n := kv.Fill(w.Local.Bytes()[w.off:], w.key, w.rng)
	task, err := w.Tasks.WriteImm(w.Conn, bufinv.Source(w.Local, w.off, n),
		bufinv.Target(w.Table, int(w.slot)*kv.SlotSize, n), w.tag|w.slot)
	return w.Ask(task, err, w.granted)
}

// get reads the value from its last known slot, or asks for the slot.
func (w *worker) get() error {
	if slot, ok := w.slots[w.key]; ok {
		task, err := w.Tasks.Read(w.Conn, bufinv.Source(w.Table, int(slot)*kv.SlotSize, kv.SlotSize), bufinv.Target(w.Local, w.off, kv.SlotSize))
		return w.Submit(task, err, w.verify)
	}
	task, err := w.Tasks.SendImm(w.Conn, bufinv.Source(w.Local, w.off, copy(w.Local.Bytes()[w.off:], w.key)), w.tag)
	return w.Ask(task, err, func() error {
		if w.Answer == kv.NoSlot {
			return w.next() // there is no value
		}
		w.slots[w.key] = w.Answer
		return w.get()
	})
}

// verify checks the record, and asks for the slot again if the value was replaced.
func (w *worker) verify() error {
	if kv.Holds(w.Local.Bytes()[w.off:][:kv.SlotSize], w.key) {
		return w.next()
	}
	w.tries++
	if w.tries == 1000 { // other clients replace it, but not all the time
		return fmt.Errorf("no valid value of %s in slot %d after 1000 reads", w.key, w.slots[w.key])
	}
	delete(w.slots, w.key)
	return w.get()
}
