// Command kv_client_await is kv_client with blocking calls: 16 goroutines do one operation
// after another, and one more drives the engine. See kv_server for the protocol.
package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/kv"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

type worker struct {
	*kv.Client
	tag, slot uint32 // the worker's number, shifted; the slot for the next put
	off       int    // of the worker's own slot in the local memory
	rng       *rand.Rand
	slots     map[string]uint32 // slots that values were in
	answers   chan uint32
}

func main() { kv.Main("kv_client_await", run) }

func run(ctx context.Context, s *sample.Session, c *kv.Client) error {
	working, stop := context.WithCancelCause(ctx)
	var list []*worker
	var workers sync.WaitGroup
	c.Users = &workers
	return c.Run(ctx, s, func(m *rdma.Message) {
		imm, _ := m.Imm()
		if i := int(imm >> 24); i < len(list) && len(list[i].answers) == 0 {
			list[i].answers <- imm & kv.NoSlot
		}
	}, func(state pe.State) {
		switch state {
		case pe.Running:
			for i := range kv.Workers {
				w := &worker{Client: c, tag: uint32(i) << 24, off: i * kv.SlotSize,
					rng: rand.New(rand.NewPCG(c.Seed, uint64(i))), slots: map[string]uint32{}, answers: make(chan uint32, 1)}
				list = append(list, w)
				workers.Go(func() { c.RDMA.Fail(w.work(working, i)) })
			}
			engine := c.RDMA.Engine() // the context has none once it is closed
			go func() { workers.Wait(); _ = engine.Do(func() { c.RDMA.Stop() }) }()
		case pe.Stopping:
			stop(c.RDMA.Err()) // no answers will come
		}
	})
}

func (w *worker) work(ctx context.Context, first int) (err error) {
	w.slot, err = w.answer(ctx, await.SendImm(ctx, w.Conn, nil, w.tag)) // asks for a slot
	operations := []func(context.Context, string) error{w.get, w.get, w.get, w.put}
	for n := uint64(first); n < w.N && err == nil; n += kv.Workers {
		err = operations[w.rng.IntN(4)](ctx, fmt.Sprintf("key %d", w.rng.Uint64N(w.Keys)))
	}
	return err
}

// answer waits for the server's answer, and returns its slot. err is the error of the
// request's send.
func (w *worker) answer(ctx context.Context, err error) (uint32, error) {
	if err != nil {
		return 0, err
	}
	select {
	case slot := <-w.answers:
		return slot, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// put writes a record. The immediate tells the server that the data is complete.
func (w *worker) put(ctx context.Context, key string) (err error) {
	n := kv.Fill(w.Local.Bytes()[w.off:], key, w.rng)
	src, dst := bufinv.Source(w.Local, w.off, n), bufinv.Target(w.Table, int(w.slot)*kv.SlotSize, n)
	w.slot, err = w.answer(ctx, await.WriteImm(ctx, w.Conn, src, dst, w.tag|w.slot))
	return err
}

// get reads the value from its last known slot, or asks for the slot. Other clients may
// replace the value meanwhile.
func (w *worker) get(ctx context.Context, key string) (err error) {
	record := w.Local.Bytes()[w.off:][:kv.SlotSize]
	for range 1000 {
		slot, ok := w.slots[key]
		if !ok {
			slot, err = w.answer(ctx, await.SendImm(ctx, w.Conn, bufinv.Source(w.Local, w.off, copy(record, key)), w.tag))
			if err != nil || slot == kv.NoSlot {
				return err
			}
		}
		src, dst := bufinv.Source(w.Table, int(slot)*kv.SlotSize, kv.SlotSize), bufinv.Target(w.Local, w.off, kv.SlotSize)
		err = await.Read(ctx, w.Conn, src, dst)
		w.slots[key] = slot
		if err != nil || kv.Holds(record, key) {
			return err
		}
		delete(w.slots, key)
	}
	return fmt.Errorf("no valid value of %s after 1000 reads", key)
}
