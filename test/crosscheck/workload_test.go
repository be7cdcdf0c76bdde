// Package crosscheck runs random workloads between two devices, so that the results can be
// compared with those of the same workload on other devices: what completed, with which status,
// and all bytes of memory. A workload follows from its seed.
//
// Only what the specification defines is compared. Within a phase the operations of a connection
// touch different memory, except for atomics, which are done in order. A workload may end with an
// operation that fails.
package crosscheck

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/pattern"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rdma/rdmatest"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

// outcome is what a workload has led to. All of it is the same on all devices.
type outcome struct {
	Ending string
	// Completions are those of the tasks, in the order of their callbacks, and Received the
	// messages, by end and connection.
	Completions, Received map[string][]string
	// Refuser is the state of the connection at the end that has refused a request, if it has.
	// Only software devices report that.
	Refuser string
	// Memory has a checksum of each memory, after each phase.
	Memory []string
	// Count is the number of completions and messages.
	Count int
}

const (
	regionSize  = 64 << 10 // bytes of each memory that belong to one connection
	words       = 64       // bytes at the beginning of a region that atomics work on
	messageSize = 16 << 10
	receives    = 32 // of each end
	maxBatch    = 6  // operations of one connection in a phase
)

// limit is how long a workload may take, by the clock of the devices.
const limit = time.Minute

// workload is a workload under way.
type workload struct {
	random *rand.Rand
	engine *pe.Engine
	host   host.Host
	ends   [2]*end
	ending ending
	result *outcome
	limit  time.Time
}

// end is one end of the connections.
type end struct {
	w        *workload
	name     string
	dev      verbs.Device
	r        *rdma.Connections
	tasks    *rdma.Pool
	incoming *rdma.ReceivePool
	conns    []*rdma.Connection
	exported *mmap.Map // that the peer works on
	local    *mmap.Map // sources in the first half of a region, destinations in the second
	buffers  *mmap.Map // of the receives
	remote   *mmap.Map // the peer's exported memory
	event    *syncevent.Event
	theirs   *syncevent.Event // the peer's
	inFlight int
	posted   int   // receives
	unused   []int // places in buffers of receives that are not posted
	reposts  bool  // receives are posted again
}

// runWorkload runs the workload of a seed between two devices, which may be one. The calling goroutine
// drives both. From the call of noLoss on, which may be nil, no packet may be lost: the refusal of
// a request is sent once, since the queue pair that refuses is in the error state, and without
// it the request would fail for lack of an answer.
func runWorkload(a, b verbs.Device, seed uint64, noLoss func()) (result *outcome, err error) {
	random := rand.New(rand.NewPCG(seed, 0))
	w := &workload{
		random: random, engine: pe.New(pe.Config{}), host: host.Of(a), ending: endings[random.IntN(len(endings))],
		result: &outcome{Completions: map[string][]string{}, Received: map[string][]string{}},
	}
	w.result.Ending = w.ending.name
	w.limit = w.host.Now().Add(limit)
	defer func() { err = errors.Join(err, w.close()) }()
	connections := 1 + random.IntN(3)
	cfg := w.config(connections)
	for i, dev := range []verbs.Device{a, b} {
		cfg.Name = string(rune('a' + i))
		if w.ends[i], err = w.newEnd(dev, cfg); err != nil {
			return nil, err
		}
	}
	if err := w.connect(connections); err != nil {
		return nil, err
	}
	for range 2 + random.IntN(4) {
		if err := w.phase(); err != nil {
			return nil, err
		}
	}
	if noLoss != nil {
		noLoss()
	}
	if err := w.ending.run(w); err != nil {
		return nil, fmt.Errorf("%s: %w", w.ending.name, err)
	}
	for _, e := range w.ends { // other connections go on
		e.conns = e.conns[1:]
	}
	if err := w.phase(); err != nil {
		return nil, fmt.Errorf("after %s: %w", w.ending.name, err)
	}
	return w.result, nil
}

// config draws the configuration of both contexts.
func (w *workload) config(connections int) rdma.Config {
	random := w.random
	cfg := rdma.Config{
		Engine: w.engine, MaxConnections: connections, Permissions: mmap.RemoteRead | mmap.RemoteAtomic,
		Path:          rdma.PathConfig{MTU: verbs.MTU(256 << random.IntN(3))}, // 256 to 1024
		SendQueueSize: 1 + random.IntN(maxBatch),
	}
	if w.ending.configure != nil {
		w.ending.configure(&cfg)
	}
	return cfg
}

func (w *workload) newEnd(dev verbs.Device, cfg rdma.Config) (e *end, err error) {
	e = &end{w: w, name: cfg.Name, dev: dev, reposts: true}
	if e.r, err = rdma.New(dev, cfg); err != nil {
		return nil, err
	}
	const all = mmap.LocalReadWrite | mmap.RemoteRead | mmap.RemoteWrite | mmap.RemoteAtomic
	if e.exported, err = mmap.Alloc(dev, cfg.MaxConnections*regionSize, all); err != nil {
		return nil, err
	}
	if e.local, err = mmap.Alloc(dev, cfg.MaxConnections*regionSize, mmap.LocalReadWrite); err != nil {
		return nil, err
	}
	if e.buffers, err = mmap.Alloc(dev, receives*messageSize, mmap.LocalReadWrite); err != nil {
		return nil, err
	}
	if e.event, err = syncevent.New(dev, syncevent.Config{Publishers: syncevent.PublishRemote}); err != nil {
		return nil, err
	}
	if e.tasks, err = e.r.Pool(cfg.MaxConnections*(maxBatch+receives), func(t *rdma.Task) { e.completed(t, nil) }, e.completed); err != nil {
		return nil, err
	}
	for n := range receives {
		e.unused = append(e.unused, n)
	}
	pattern.Fill(e.exported.Bytes(), 0, 0)
	e.incoming, err = e.r.ReceivePool(receives, func(t *rdma.ReceiveTask) { e.received(t, nil) }, e.received)
	return e, err
}

// connect makes the connections, and gives each end the other's memory and event.
func (w *workload) connect(connections int) error {
	for i, e := range w.ends {
		if err := e.r.Start(); err != nil {
			return err
		}
		if err := e.post(); err != nil {
			return err
		}
		peer := w.ends[1-i]
		desc, err := e.exported.Export(e.dev)
		if err != nil {
			return err
		}
		if peer.remote, err = mmap.Import(peer.dev, desc); err != nil {
			return err
		}
		if desc, err = e.event.Export(); err != nil {
			return err
		}
		if peer.theirs, err = syncevent.Import(peer.dev, desc); err != nil {
			return err
		}
	}
	a, b := w.ends[0], w.ends[1]
	for i := range connections {
		atA, atB, err := rdmatest.Connect(a.r, b.r)
		if err != nil {
			return err
		}
		for _, c := range []*rdma.Connection{atA, atB} {
			c.SetUserData(i)
		}
		a.conns, b.conns = append(a.conns, atA), append(b.conns, atB)
	}
	return w.until("the connections are ready", func() bool {
		for i := range connections {
			if a.conns[i].State() != rdma.Ready || b.conns[i].State() != rdma.Ready {
				return false
			}
		}
		return true
	})
}

// until drives the engine until the condition holds.
func (w *workload) until(what string, holds func() bool) error {
	for !holds() {
		if w.host.Now().After(w.limit) {
			return fmt.Errorf("%v of the workload have passed before %s", limit, what)
		}
		for _, e := range w.ends {
			if err := e.r.Err(); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		if _, err := w.engine.Progress(); err != nil {
			return err
		}
	}
	return nil
}

// phase submits random operations on all connections, at both ends, and waits for them.
func (w *workload) phase() error {
	sent := 0
	for _, e := range w.ends {
		for _, c := range e.conns {
			b := &batch{e: e, conn: c}
			b.clear()
			for range w.random.IntN(maxBatch + 1) {
				message, err := b.submit()
				if err != nil {
					return err
				}
				if message {
					sent++
				}
			}
		}
	}
	before := w.messages()
	err := w.until("the operations of a phase are done", func() bool {
		return w.ends[0].inFlight+w.ends[1].inFlight == 0 && w.messages() == before+sent
	})
	w.checksums()
	return err
}

// messages is the number of messages received so far.
func (w *workload) messages() (n int) {
	for _, list := range w.result.Received {
		n += len(list)
	}
	return n
}

// checksums notes what memory holds.
func (w *workload) checksums() {
	for _, e := range w.ends {
		value, err := e.event.Get()
		w.result.Memory = append(w.result.Memory, fmt.Sprintf("%s: exported %08x, local %08x, event %d %v",
			e.name, checksum(e.exported.Bytes()), checksum(e.local.Bytes()), value, err))
	}
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// completed is called when a task has ended.
func (e *end) completed(t *rdma.Task, err error) {
	index := t.Connection().UserData().(int)
	text := fmt.Sprintf("%v of %d bytes: %s", t.Operation(), t.Bytes(), status(err))
	if err == nil && t.Operation() != rdma.OpSyncEventAdd { // all connections add to one event
		text += fmt.Sprintf(", %d", t.Original())
	}
	e.note(e.w.result.Completions, index, text)
	e.inFlight--
	e.r.Fail(t.Free())
}

// received is called when a receive has ended. Those that no message has used say nothing.
func (e *end) received(t *rdma.ReceiveTask, err error) {
	e.posted--
	if t.Connection() != nil && !errors.Is(err, rdma.ErrFlushed) {
		imm, has := t.Imm()
		text := fmt.Sprintf("%v: %s", t.Opcode(), status(err))
		if err == nil {
			data := t.Destination().AppendBytes(nil)
			text += fmt.Sprintf(", %d bytes, %08x, %d %t", t.Length(), checksum(data), imm, has)
		}
		e.note(e.w.result.Received, t.Connection().UserData().(int), text)
	}
	if !e.reposts || t.Submit() != nil {
		e.unused = append(e.unused, t.UserData().(int))
		e.r.Fail(t.Free())
		return
	}
	e.posted++
}

// post posts the receives that are not.
func (e *end) post() error {
	for _, n := range e.unused {
		t, err := e.incoming.Alloc(bufinv.Target(e.buffers, n*messageSize, messageSize))
		if err != nil {
			return err
		}
		t.SetUserData(n)
		if err := t.Submit(); err != nil {
			return errors.Join(err, t.Free())
		}
		e.posted++
	}
	e.unused = nil
	return nil
}

func (e *end) note(list map[string][]string, index int, text string) {
	key := fmt.Sprint(e.name, index)
	list[key] = append(list[key], text)
	e.w.result.Count++
}

// status is the status of a task that has ended.
func status(err error) string {
	var failed *rdma.TaskError
	switch {
	case err == nil:
		return "success"
	case errors.As(err, &failed):
		return failed.Status.String()
	}
	return err.Error()
}

// close releases everything.
func (w *workload) close() (err error) {
	for _, e := range w.ends {
		if e != nil {
			err = errors.Join(err, e.r.Stop())
		}
	}
	err = errors.Join(err, w.engine.Close())
	for _, e := range w.ends {
		if e == nil {
			continue
		}
		for _, c := range []interface{ Close() error }{e.r, e.remote, e.theirs, e.event, e.exported, e.local, e.buffers} {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}
