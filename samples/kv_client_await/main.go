// Command kv_client_await is kv_client with blocking calls: 16 goroutines do one operation
// after another, and one more drives the engine. See kv_server for the protocol.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"sync"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

const (
	window, slotSize       = 16, 4096
	keyAt, valueAt, noSlot = 8, 32, 1<<24 - 1
)

type client struct {
	n, keys, seed uint64
	rdma          *rdma.Connections
	conn          *rdma.Connection
	local, table  *mmap.Map // a slot for each worker; the slots of the server
	workers       []*worker
}

type worker struct {
	*client
	tag, slot uint32 // its number, shifted; where the server lets it put the next value
	off       int    // of its own slot in the local memory
	rng       *rand.Rand
	where     map[string]uint32 // slots that values were in
	answers   chan uint32
}

func main() {
	p := &client{n: 10000, keys: 100, seed: 1}
	sample.Main(sample.Program{
		Name: "kv_client_await", About: "Gets and puts values of kv_server, and checks every one.",
		Role: sample.Requester, Peer: "kv_server", Memory: sample.ImportsMemory,
		Flags: func(f *sample.Flags) {
			f.Uint64(&p.n, "n", "operations", "N", "gets and puts, 3 to 1")
			f.Uint64(&p.keys, "", "keys", "N", "different keys, at least 1")
			f.Uint64(&p.seed, "", "seed", "N", "of the random choices")
		},
	}, p.run)
}

func (p *client) run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory
	if p.local, err = mmap.Alloc(dev, window*slotSize, mmap.LocalReadWrite); err != nil {
		return err
	}
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context
	p.rdma, err = rdma.New(dev, rdma.Config{Engine: engine, Path: rdma.Path{GIDIndex: s.GIDIndex}, ConnectTimeout: s.ConnectTimeout, EndWithLastConnection: true})
	if err != nil {
		return err
	}
	working, stop := context.WithCancelCause(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	p.rdma.OnConnection(func(_ *rdma.Connection, _ rdma.ConnectionState, err error) { p.rdma.Fail(err) })
	p.rdma.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Starting:
			s.Peer.Connect(p.rdma, func(c *rdma.Connection, m *mmap.Map, err error) { p.conn, p.table = c, m; p.rdma.Fail(err) })
		case pe.Running:
			for i := range window {
				w := &worker{client: p, tag: uint32(i) << 24, off: i * slotSize,
					rng: rand.New(rand.NewPCG(p.seed, uint64(i))), where: map[string]uint32{}, answers: make(chan uint32, 1)}
				p.workers = append(p.workers, w)
				workers.Go(func() { p.rdma.Fail(w.work(working, i)) })
			}
			go func() { workers.Wait(); _ = engine.Do(func() { p.rdma.Stop() }) }()
		case pe.Stopping:
			stop(p.rdma.Err()) // no answers will come
		}
	})
	if err := errors.Join(p.rdma.Receive(window, 0, p.answered), p.rdma.Start()); err != nil {
		return err
	}
	if err = engine.Run(ctx); err == nil {
		s.Print("%d operations, every value verified", p.n)
	}
	return err
}

func (p *client) answered(m *rdma.Message) {
	imm, _ := m.Imm()
	if i := int(imm >> 24); i < len(p.workers) && len(p.workers[i].answers) == 0 {
		p.workers[i].answers <- imm & noSlot
	}
}

func (w *worker) work(ctx context.Context, first int) (err error) {
	w.slot, err = w.answer(ctx, await.SendImm(ctx, w.conn, nil, w.tag)) // asks for a slot
	operations := []func(context.Context, string) error{w.get, w.get, w.get, w.put}
	for n := uint64(first); n < w.n && err == nil; n += window {
		err = operations[w.rng.IntN(4)](ctx, fmt.Sprintf("key %d", w.rng.Uint64N(max(w.keys, 1))))
	}
	return err
}

// answer waits for the slot in the answer to what has been sent with err.
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

// put writes a record. The immediate notifies the server, behind the data.
func (w *worker) put(ctx context.Context, key string) (err error) {
	n := valueAt + w.rng.IntN(slotSize-valueAt)
	record := w.local.Bytes()[w.off:][:n]
	clear(record[:valueAt])
	copy(record[keyAt:], key)
	copy(record[valueAt:], bytes.Repeat([]byte{byte(w.rng.Uint32()), byte(n)}, n))
	binary.LittleEndian.PutUint32(record[4:], uint32(n-valueAt))
	binary.LittleEndian.PutUint32(record, checksum(key, record[valueAt:]))
	src, dst := bufinv.Source(w.local, w.off, n), bufinv.Target(w.table, int(w.slot)*slotSize, n)
	w.slot, err = w.answer(ctx, await.WriteImm(ctx, w.conn, src, dst, w.tag|w.slot))
	return err
}

// get reads the value where it was, or asks where it is; others may replace it meanwhile.
func (w *worker) get(ctx context.Context, key string) (err error) {
	record := w.local.Bytes()[w.off:][:slotSize]
	for range 1000 {
		slot, ok := w.where[key]
		if !ok {
			slot, err = w.answer(ctx, await.SendImm(ctx, w.conn, bufinv.Source(w.local, w.off, copy(record, key)), w.tag))
			if err != nil || slot == noSlot {
				return err
			}
		}
		src, dst := bufinv.Source(w.table, int(slot)*slotSize, slotSize), bufinv.Target(w.local, w.off, slotSize)
		err = await.Read(ctx, w.conn, src, dst)
		w.where[key] = slot
		n := min(binary.LittleEndian.Uint32(record[4:]), slotSize-valueAt)
		if err != nil || binary.LittleEndian.Uint32(record) == checksum(key, record[valueAt:valueAt+n]) {
			return err
		}
		delete(w.where, key)
	}
	return fmt.Errorf("%s has no right value", key)
}

func checksum(k string, value []byte) uint32 { return crc32.ChecksumIEEE(append([]byte(k), value...)) }
