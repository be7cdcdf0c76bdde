// Command kv_client gets and puts values of kv_server, whose text describes the protocol,
// with callbacks: 16 workers, each a small state machine, do an operation at a time. A get
// is one RDMA read where the client knows the slot of the value; the server's program does
// not notice. A put is one write with immediate, and its answer. Every value is checked.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

const window, slotSize = 16, 4096
const keyAt, valueAt, noSlot = 8, 32, 1<<24 - 1

type client struct {
	n, keys, seed uint64
	rng           *rand.Rand
	rdma          *rdma.Connections
	tasks         *rdma.Pool
	conn          *rdma.Connection
	local, table  *mmap.Map // a slot for each worker; the slots of the server
	workers       []*worker
	where         map[string]uint32 // slots that values were in
	begun, ended  uint64            // operations, workers
}

type worker struct {
	*client
	tag, slot uint32 // its number, shifted; where the server lets it put the next value
	key       string
	off       int          // of its own slot in the local memory
	tries     int          // to read a value that others replace
	left      int          // things that have to happen before
	then      func() error // is called
	answer    uint32       // the slot in it
}

func main() {
	p := &client{n: 10000, keys: 100, seed: 1, where: map[string]uint32{}}
	sample.Main(sample.Program{
		Name: "kv_client", About: "Gets and puts values of kv_server, and checks every one.",
		Role: sample.Requester, Peer: "kv_server", Memory: sample.ImportsMemory,
		Flags: func(f *sample.Flags) {
			f.Uint64(&p.n, "n", "operations", "N", "gets and puts, 3 to 1")
			f.Uint64(&p.keys, "", "keys", "N", "different keys, at least 1")
			f.Uint64(&p.seed, "", "seed", "N", "of the random choices")
		},
	}, p.run)
}

func (p *client) run(ctx context.Context, s *sample.Session) (err error) {
	p.keys, p.rng = max(p.keys, 1), rand.New(rand.NewPCG(p.seed, 0))
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
	p.rdma.OnConnection(func(_ *rdma.Connection, _ rdma.ConnectionState, err error) { p.rdma.Fail(err) })
	p.rdma.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Starting:
			s.Peer.Connect(p.rdma, func(c *rdma.Connection, m *mmap.Map, err error) { p.conn, p.table = c, m; p.rdma.Fail(err) })
		case pe.Running:
			for i := range window {
				w := &worker{client: p, tag: uint32(i) << 24, off: i * slotSize}
				p.workers = append(p.workers, w)
				task, err := p.tasks.SendImm(p.conn, nil, w.tag) // asks for a slot
				p.rdma.Fail(w.submit(task, err, 2, w.given))
			}
		}
	})
	p.tasks, err = p.rdma.SharedPool()
	if err := errors.Join(err, p.rdma.Receive(window, 0, p.answered), p.rdma.Start()); err != nil {
		return err
	}
	if err = engine.Run(ctx); err == nil {
		s.Print("%d operations, every value verified", p.n)
	}
	return err
}

// submit goes on with then when the task has completed and, for 2, the answer has come.
func (w *worker) submit(t *rdma.Task, err error, left int, then func() error) error {
	w.left, w.then = left, then
	return pe.SubmitNew(t, err, func(t *rdma.Task, err error) {
		w.rdma.Fail(errors.Join(err, t.Free()))
		w.step()
	})
}

func (w *worker) step() {
	w.left--
	if w.left == 0 && w.rdma.State() == pe.Running {
		w.rdma.Fail(w.then())
	}
}

func (p *client) answered(m *rdma.Message) {
	if imm, _ := m.Imm(); int(imm>>24) < len(p.workers) {
		w := p.workers[imm>>24]
		w.answer = imm & noSlot
		w.step()
	}
}

// given has a slot for the next put. With noSlot, that will be out of bounds.
func (w *worker) given() error { w.slot = w.answer; return w.next() }

// next begins an operation.
func (w *worker) next() error {
	if w.begun == w.n {
		w.ended++
		if w.ended == window {
			return w.rdma.Stop()
		}
		return nil
	}
	w.begun++
	w.key, w.tries = fmt.Sprintf("key %d", w.rng.Uint64N(w.keys)), 0
	if w.rng.IntN(4) > 0 {
		return w.get()
	}
	// The immediate of a put notifies the server, behind the data.
	n := valueAt + w.rng.IntN(slotSize-valueAt)
	record := w.local.Bytes()[w.off:][:n]
	clear(record[:valueAt])
	copy(record[keyAt:], w.key)
	copy(record[valueAt:], bytes.Repeat([]byte{byte(w.begun), byte(n)}, n))
	binary.LittleEndian.PutUint32(record[4:], uint32(n-valueAt))
	binary.LittleEndian.PutUint32(record, checksum(w.key, record[valueAt:]))
	task, err := w.tasks.WriteImm(w.conn, bufinv.Source(w.local, w.off, n),
		bufinv.Target(w.table, int(w.slot)*slotSize, n), w.tag|w.slot)
	return w.submit(task, err, 2, w.given)
}

// get reads the value where it was, or asks where it is.
func (w *worker) get() error {
	if slot, ok := w.where[w.key]; ok {
		task, err := w.tasks.Read(w.conn, bufinv.Source(w.table, int(slot)*slotSize, slotSize), bufinv.Target(w.local, w.off, slotSize))
		return w.submit(task, err, 1, w.verify)
	}
	n := copy(w.local.Bytes()[w.off:], w.key)
	task, err := w.tasks.SendImm(w.conn, bufinv.Source(w.local, w.off, n), w.tag)
	return w.submit(task, err, 2, func() error {
		if w.answer == noSlot {
			return w.next() // nobody has put a value
		}
		w.where[w.key] = w.answer
		return w.get()
	})
}

// verify checks what was read: it may be no record of the key any more, or half of one.
func (w *worker) verify() error {
	record := w.local.Bytes()[w.off:][:slotSize]
	n := min(binary.LittleEndian.Uint32(record[4:]), slotSize-valueAt)
	if binary.LittleEndian.Uint32(record) == checksum(w.key, record[valueAt:valueAt+n]) {
		return w.next()
	}
	w.tries++
	if w.tries == 1000 { // others replace it, but not all the time
		return fmt.Errorf("%s has no right value in slot %d", w.key, w.where[w.key])
	}
	delete(w.where, w.key)
	return w.get()
}

func checksum(k string, value []byte) uint32 { return crc32.ChecksumIEEE(append([]byte(k), value...)) }
