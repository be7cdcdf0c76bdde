package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/readable"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/internal/processor"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/test/footprint"
	"github.com/verbena-rdma/verbena/verbs"
)

// byDial selects connections made by connection manager, instead of by descriptors.
const byDial = "dial"

// many is one end of many connections to a second process: a device, an engine, a context with a
// pool of tasks, and memory that the peer may read and write.
type many struct {
	dev      verbs.Device
	engine   *pe.Engine
	rdma     *rdma.Connections
	pool     *rdma.Pool
	bufs     *bufinv.Inventory
	local    *mmap.Map
	remote   *mmap.Map
	conns    []*rdma.Connection // in the same order as the peer's, if made by descriptors
	ready    int
	baseline footprint.Footprint // of the process before its context had connections
	messages <-chan manyMessage
	fd       int // of the engine; -1: it has none
	out      *json.Encoder

	counters   bool
	completed  int              // tasks
	onComplete func(*rdma.Task) // called with each completed task
}

const access = mmap.RemoteRead | mmap.RemoteWrite

// manyMessage is a message between the two processes. The second process sends what it has made,
// and then gets commands; it ends when its standard input ends.
type manyMessage struct {
	Memory      []byte   `json:",omitempty"` // descriptor
	Connections [][]byte `json:",omitempty"` // descriptors
	Listener    string   `json:",omitempty"` // address
	Ready       bool     `json:",omitempty"` // all connections are Ready
	Echo        bool     `json:",omitempty"` // answer writes
	Ask         bool     `json:",omitempty"` // ask for Used
	Used        int64    `json:",omitempty"` // processor time of the process, in nanoseconds
	Footprint   bool     `json:",omitempty"` // ask for Heap and Resident
	Heap        float64  `json:",omitempty"` // bytes for each connection
	Resident    float64  `json:",omitempty"` // bytes for each connection
}

// errPeerEnded: the second process has ended.
var errPeerEnded = errors.New("the other process ended")

// newMany opens one end with room for o.connections connections and that many tasks, and
// starts its context.
func newMany(o options, tasks int, in io.Reader, out io.Writer) (m *many, err error) {
	m = &many{counters: o.counters, out: json.NewEncoder(out)}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	if m.dev, err = device.Open(o.device); err != nil {
		return m, err
	}
	m.engine = pe.New(pe.Config{})
	if m.fd, err = m.engine.NotificationFD(); err != nil {
		m.fd = -1
	}
	if m.local, err = mmap.Alloc(m.dev, pingMemory, mmap.LocalReadWrite|access); err != nil {
		return m, err
	}
	if m.bufs, err = bufinv.New(2 * tasks); err != nil {
		return m, err
	}
	m.rdma, err = rdma.New(m.dev, rdma.Config{
		Engine: m.engine, Permissions: access, MaxConnections: o.connections, SendQueueSize: manyDepth, CloseTimeout: 10 * time.Second,
	})
	if err != nil {
		return m, err
	}
	if m.pool, err = m.rdma.Pool(tasks, m.done, func(_ *rdma.Task, err error) { m.rdma.Fail(err) }); err != nil {
		return m, err
	}
	if o.receives > 0 {
		if err = m.rdma.ReceivePerConnection(o.receives, 0, func(*rdma.Message) {}); err != nil {
			return m, err
		}
	}
	m.rdma.OnConnection(func(_ *rdma.Connection, s rdma.ConnectionState, err error) {
		switch s {
		case rdma.Ready:
			m.ready++
		case rdma.Failed:
			m.rdma.Fail(err)
		}
	})
	m.baseline = footprint.Measure()
	if err = m.rdma.Start(); err != nil {
		return m, err
	}
	words := make(chan manyMessage)
	m.messages = words
	go func() {
		defer close(words)
		for d := json.NewDecoder(in); ; {
			var w manyMessage
			if d.Decode(&w) != nil {
				return
			}
			words <- w
		}
	}()
	for m.rdma.State() == pe.Starting && err == nil {
		err = m.progress()
	}
	return m, err
}

// manyDepth is the capacity of a connection's send queue.
const manyDepth = 256

// progress drives the engine once, and returns any failure so far.
func (m *many) progress() error {
	if _, err := m.engine.Progress(); err != nil {
		return err
	}
	return m.rdma.Err()
}

// tasks allocates n writes of size bytes. All use the same source and destination, as those of
// perftest do, so that caches have the same effect.
func (m *many) tasks(n, size int) ([]*rdma.Task, error) {
	var tasks []*rdma.Task
	for range n {
		t, err := m.pool.Write(m.conns[0], m.bufs.Source(m.local, 0, size), m.bufs.Target(m.remote, 0, size))
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, t)
	}
	return tasks, nil
}

func (m *many) done(t *rdma.Task) {
	m.completed++
	if m.onComplete != nil {
		m.onComplete(t)
	}
}

// stop stops the context, and waits for its tasks.
func (m *many) stop() error {
	m.onComplete = nil
	return m.rdma.Close()
}

func (m *many) close() error {
	var errs []error
	if m.rdma != nil {
		errs = append(errs, m.stop())
	}
	if m.bufs != nil {
		errs = append(errs, m.bufs.Close())
	}
	for _, memory := range []*mmap.Map{m.local, m.remote} {
		if memory != nil {
			errs = append(errs, memory.Close())
		}
	}
	if m.engine != nil {
		errs = append(errs, m.engine.Close())
	}
	if m.dev != nil {
		if m.counters {
			errs = append(errs, showCounters(m.dev))
		}
		errs = append(errs, m.dev.Close())
	}
	return errors.Join(errs...)
}

func showCounters(dev verbs.Device) error {
	counters, err := dev.Counters()
	for _, c := range counters {
		if c.Value != 0 {
			fmt.Fprintf(os.Stderr, "    %s %d\n", c.Name, c.Value)
		}
	}
	return err
}

// receive waits for the peer's next message, polling the engine meanwhile.
func (m *many) receive() (manyMessage, error) { return m.next(m.progress) }

// receiveAsleep waits for the peer's next message as an idle program does: it sleeps while the
// engine has no work.
func (m *many) receiveAsleep() (manyMessage, error) {
	return m.next(func() error { return m.sleep(time.Now().Add(10 * time.Millisecond)) })
}

// next calls drive repeatedly until the peer's next message has arrived.
func (m *many) next(drive func() error) (manyMessage, error) {
	for {
		select {
		case w, ok := <-m.messages:
			if !ok {
				return w, errPeerEnded
			}
			return w, nil
		default:
		}
		if err := drive(); err != nil {
			return manyMessage{}, err
		}
	}
}

// sleep drives the engine until the given time, and sleeps while there is nothing to do.
func (m *many) sleep(until time.Time) error {
	for {
		n, err := m.engine.Progress()
		if err = errors.Join(err, m.rdma.Err()); err != nil {
			return err
		}
		left := time.Until(until)
		switch {
		case left <= 0:
			return nil
		case n > 0:
		case m.fd < 0:
			time.Sleep(min(left, time.Millisecond))
		default:
			if err := m.engine.Arm(); err != nil {
				return err
			}
			if err := readable.Await(m.fd, left); err != nil {
				return err
			}
		}
	}
}

// export makes n connections, and returns their descriptors.
func (m *many) export(n int) (descs [][]byte, err error) {
	for range n {
		conn, desc, err := m.rdma.Export()
		if err != nil {
			return nil, err
		}
		m.conns, descs = append(m.conns, conn), append(descs, desc)
	}
	return descs, nil
}

// connectAll connects the connections to those of the peer.
func (m *many) connectAll(descs [][]byte) error {
	if len(descs) != len(m.conns) {
		return fmt.Errorf("the peer has %d connections, this end %d", len(descs), len(m.conns))
	}
	for i, desc := range descs {
		if err := m.conns[i].Connect(desc); err != nil {
			return err
		}
	}
	return nil
}

// untilReady waits until n connections are Ready.
func (m *many) untilReady(n int) error {
	for m.ready < n {
		if err := m.progress(); err != nil {
			return err
		}
	}
	if m.conns == nil { // the listener has accepted them
		m.conns = m.rdma.List()
	}
	return nil
}

// memory imports the peer's memory.
func (m *many) memory(desc []byte) (err error) {
	m.remote, err = mmap.Import(m.dev, desc)
	return err
}

// serveMany is the second process of bench scale.
func serveMany(o options, in io.Reader, out io.Writer) (err error) {
	m, err := newMany(o, pingTasks, in, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	var hello manyMessage
	if hello.Memory, err = m.local.Export(m.dev); err != nil {
		return err
	}
	if o.only == byDial {
		l, err := m.rdma.Listen(":0", rdma.ListenConfig{Backlog: o.connections})
		if err != nil {
			return err
		}
		hello.Listener = netip.AddrPortFrom(m.rdma.GID().GID.Addr(), l.Addr().Port()).String()
	}
	if err := m.out.Encode(hello); err != nil {
		return err
	}
	w, err := m.receive()
	if err != nil {
		return err
	}
	if err := m.memory(w.Memory); err != nil {
		return err
	}
	if o.only != byDial {
		descs, err := m.export(o.connections)
		if err == nil {
			err = m.connectAll(w.Connections)
		}
		if err == nil {
			err = m.out.Encode(manyMessage{Connections: descs})
		}
		if err != nil {
			return err
		}
	}
	if err := m.untilReady(o.connections); err != nil {
		return err
	}
	if err := m.out.Encode(manyMessage{Ready: true}); err != nil {
		return err
	}
	for {
		w, err := m.receiveAsleep()
		switch {
		case err != nil:
		case w.Echo:
			err = m.echoWrites()
		case w.Ask:
			err = m.out.Encode(manyMessage{Used: int64(processor.Time())})
		case w.Footprint:
			var own manyMessage
			own.Heap, own.Resident = footprint.Measure().Grown(m.baseline, o.connections)
			err = m.out.Encode(own)
		}
		if errors.Is(err, errPeerEnded) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// echoWrites writes every number back until the peer's next message.
func (m *many) echoWrites() error {
	p, err := newPinger(m)
	if err != nil {
		return err
	}
	for next, pass := uint64(1), 0; ; pass++ {
		if p.hasArrived(next) {
			if err := p.write(next); err != nil {
				return err
			}
			next++
			continue
		}
		if err := p.progress(); err != nil {
			return err
		}
		if pass%pollsPerProgress == 0 {
			select {
			case _, ok := <-m.messages:
				if !ok {
					return errPeerEnded
				}
				return nil
			default:
			}
		}
	}
}
