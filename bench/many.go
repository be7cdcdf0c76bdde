package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/footprint"
	"github.com/verbena-rdma/verbena/bench/internal/readable"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/internal/processor"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// byDial selects connections made by connection manager, instead of by descriptors.
const byDial = "dial"

// many is one end of many connections to a second process.
type many struct {
	*endpoint
	conns    []*rdma.Connection // in the same order as the peer's, if made by descriptors
	ready    int
	baseline footprint.Footprint // of the process before its context had connections
	messages <-chan manyMessage
	fd       int // of the engine; -1: it has none
	out      *json.Encoder
}

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
	m = &many{endpoint: &endpoint{counters: o.counters}, out: json.NewEncoder(out)}
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
		Engine: m.engine, Permissions: access, MaxConnections: o.connections, Queues: rdma.Queues{SendQueueSize: manyDepth}, CloseTimeout: 10 * time.Second,
	})
	if err != nil {
		return m, err
	}
	if err = m.makePool(tasks); err != nil {
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
	return m, waitRunning(m.endpoint)
}

// manyDepth is the capacity of a connection's send queue.
const manyDepth = 256

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
	m.conn = m.conns[0]
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
			own.Heap, _, own.Resident = footprint.Measure().Grown(m.baseline, o.connections)
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
	p, err := newPinger(m.endpoint)
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

// warmedUp drives the engine before a measurement of length d.
func warmedUp(e *endpoint, d time.Duration) error {
	for begin := time.Now(); time.Since(begin) < min(warmUp, 10*d); {
		if err := e.progress(); err != nil {
			return err
		}
	}
	return nil
}

// measureNow counts completions for the time d.
func measureNow(e *endpoint, d time.Duration) (completed int, elapsed time.Duration, err error) {
	begin, before := time.Now(), e.completed
	for elapsed < d {
		if err := e.progress(); err != nil {
			return 0, 0, err
		}
		elapsed = time.Since(begin)
	}
	return e.completed - before, elapsed, nil
}
