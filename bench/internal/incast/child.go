package incast

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// reportFile is the file descriptor for reports.
const reportFile = 3

const access = mmap.RemoteRead | mmap.RemoteWrite

// side is one process, whose connections are all on one device.
type side struct {
	o       options
	active  bool
	dev     verbs.Device
	engine  *pe.Engine
	rdma    *rdma.Connections
	local   *mmap.Map
	remotes map[string]*mmap.Map // by descriptor
	bufs    bufinv.Inventory
	conns   []*rdma.Connection
	index   map[*rdma.Connection]int
	ready   int

	receives *rdma.ReceivePool
	tasks    *rdma.Pool // of the active side

	from, to time.Time // the period of the measurement
	report   report
	reports  *json.Encoder
	theirs   []*mmap.Map // the peer's memory, for each connection
}

// operations has a function for each operation, which allocates the i-th task of a connection.
var operations = map[string]func(s *side, conn, i int) (*rdma.Task, error){
	"write": func(s *side, conn, i int) (*rdma.Task, error) {
		return s.tasks.Write(s.conns[conn], s.bufs.Source(s.local, s.at(conn, i), s.o.size), s.bufs.Target(s.theirs[conn], 0, s.o.size))
	},
	"read": func(s *side, conn, i int) (*rdma.Task, error) {
		return s.tasks.Read(s.conns[conn], s.bufs.Source(s.theirs[conn], 0, s.o.size), s.bufs.Target(s.local, s.at(conn, i), s.o.size))
	},
	"send": func(s *side, conn, i int) (*rdma.Task, error) {
		return s.tasks.Send(s.conns[conn], s.bufs.Source(s.local, s.at(conn, i), s.o.size))
	},
}

// at returns the offset of a task's data.
func (s *side) at(conn, i int) int { return (conn*s.o.window + i) * s.o.size }

// serve is the main function of the child processes. They connect, move data if they are
// active, report, and end when their standard input ends.
func serve(ctx context.Context, o options) (err error) {
	s := &side{
		o: o, active: (o.child == "receiver") == (o.operation == "read"),
		remotes: make(map[string]*mmap.Map), index: make(map[*rdma.Connection]int),
		reports: json.NewEncoder(os.NewFile(reportFile, "reports")),
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(); err != nil {
		return err
	}
	for range o.senders {
		conn, desc, err := s.rdma.Export()
		if err != nil {
			return err
		}
		s.index[conn] = len(s.conns)
		s.conns = append(s.conns, conn)
		fmt.Print(descriptor.Armor(desc))
	}
	memory, err := s.local.Export(s.dev)
	if err != nil {
		return err
	}
	fmt.Print(descriptor.Armor(memory))
	scan := descriptor.NewScanner(os.Stdin)
	if err := s.connect(scan); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _, _ = scan.Next()
		cancel()
	}()
	if err := s.engine.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	counters, err := s.dev.Counters()
	last := report{Counters: make(map[string]uint64)}
	for _, c := range counters {
		last.Counters[c.Name] = c.Value
	}
	return errors.Join(err, s.reports.Encode(last))
}

func (s *side) open() (err error) {
	o := s.o
	if s.dev, err = device.Open(o.device); err != nil {
		return err
	}
	s.engine = pe.New(pe.Config{})
	if s.local, err = mmap.Alloc(s.dev, o.senders*o.window*o.size, mmap.LocalReadWrite|access); err != nil {
		return err
	}
	if s.rdma, err = rdma.New(s.dev, rdma.Config{Engine: s.engine, Permissions: access, MaxConnections: o.senders}); err != nil {
		return err
	}
	tasks := o.senders * o.window
	if s.active {
		s.tasks, err = s.rdma.Pool(tasks, s.done, func(_ *rdma.Task, err error) { s.failed(err) })
		if err != nil {
			return err
		}
	} else if o.operation == "send" {
		s.receives, err = s.rdma.ReceivePool(2*tasks, func(t *rdma.ReceiveTask) { s.rdma.Fail(t.Submit()) }, func(_ *rdma.ReceiveTask, err error) { s.failed(err) })
		if err != nil {
			return err
		}
	}
	s.rdma.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, err error) {
		switch state {
		case rdma.Ready:
			if s.ready++; s.ready == o.senders {
				s.rdma.Fail(s.begin())
			}
		case rdma.Failed:
			if s.ready < o.senders {
				s.rdma.Fail(fmt.Errorf("a connection failed before all were Ready: %w", err))
				return
			}
			s.report.Failed++
			fmt.Fprintln(os.Stderr, "incast: a connection failed:", err)
		}
	})
	return s.rdma.Start()
}

// connect reads the peers' descriptors, and connects.
func (s *side) connect(scan *descriptor.Scanner) error {
	for _, conn := range s.conns {
		_, desc, err := scan.Next()
		var memory []byte
		if err == nil {
			_, memory, err = scan.Next()
		}
		if err != nil {
			return fmt.Errorf("read the peers' descriptors: %w", err)
		}
		if s.remotes[string(memory)] == nil {
			if s.remotes[string(memory)], err = mmap.Import(s.dev, memory); err != nil {
				return err
			}
		}
		s.theirs = append(s.theirs, s.remotes[string(memory)])
		if err := conn.Connect(desc); err != nil {
			return err
		}
	}
	return nil
}

// begin submits the first tasks, when all connections are Ready. The report follows when the
// measurement is over, however long connecting took.
func (s *side) begin() error {
	s.from = time.Now().Add(warmUp)
	s.to = s.from.Add(s.o.duration)
	s.report.Bytes = make([]int, len(s.conns))
	if s.receives != nil {
		for i := range 2 * len(s.conns) * s.o.window {
			t, err := s.receives.Alloc(s.bufs.Target(s.local, i/2*s.o.size, s.o.size))
			if err == nil {
				err = t.Submit()
			}
			if err != nil {
				return err
			}
		}
	}
	if !s.active {
		return nil
	}
	time.AfterFunc(time.Until(s.to), func() {
		_ = s.engine.Do(func() { s.rdma.Fail(s.reports.Encode(s.report)) }) // an engine that is closed has ended with an error
	})
	for i := range s.o.window {
		for conn := range s.conns {
			t, err := operations[s.o.operation](s, conn, i)
			if err == nil {
				err = t.Submit()
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// done counts a task, and submits it again.
func (s *side) done(t *rdma.Task) {
	if now := time.Now(); now.After(s.from) && now.Before(s.to) {
		s.report.Bytes[s.index[t.Connection()]] += s.o.size
	}
	_ = t.Submit() // if the connection has failed, that is reported
}

// failed ignores tasks that fail with their connection, which is reported, or because the
// context stops.
func (s *side) failed(error) {}

func (s *side) close() error {
	var errs []error
	if s.rdma != nil {
		errs = append(errs, s.rdma.Close())
	}
	for _, m := range s.remotes {
		errs = append(errs, m.Close())
	}
	var closers []io.Closer
	if s.local != nil {
		closers = append(closers, s.local)
	}
	closers = append(closers, &s.bufs)
	if s.engine != nil {
		closers = append(closers, s.engine)
	}
	if s.dev != nil {
		closers = append(closers, s.dev)
	}
	for _, c := range closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
