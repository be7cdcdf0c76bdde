package kv

import (
	"context"
	"errors"
	"sync"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

// Workers is the number of operations that a client has in flight.
const Workers = 16

// Client is the common part of both clients.
type Client struct {
	N, Keys, Seed uint64 // of the flags: operations, different keys, and of the random choices
	RDMA          *rdma.Connections
	Tasks         *rdma.Pool
	Conn          *rdma.Connection
	Local         *mmap.Map       // a slot for each worker
	Table         *mmap.Map       // the slots of the server
	Users         *sync.WaitGroup // goroutines that use Local and Table; nil: only callbacks do
}

// Main is main of a client: it reads the flags, and calls run.
func Main(name string, run func(ctx context.Context, s *sample.Session, c *Client) error) {
	c := &Client{N: 10000, Keys: 100, Seed: 1}
	sample.Main(sample.Program{
		Name: name, About: "Gets and puts values of kv_server, and checks every one.",
		Role: sample.Requester, Peer: "kv_server", Memory: sample.ImportsMemory,
		Flags: func(f *sample.Flags) {
			f.Uint64(&c.N, "n", "operations", "number", "number of operations: gets and puts, 3 to 1")
			f.Uint64(&c.Keys, "", "keys", "number", "number of different keys, at least 1")
			f.Uint64(&c.Seed, "", "seed", "number", "seed of the random choices")
		},
	}, func(ctx context.Context, s *sample.Session) error {
		c.Keys = max(c.Keys, 1)
		return run(ctx, s, c)
	})
}

// Run connects to the server and runs the engine until the context is Idle. It calls answered
// with each message of the server, and changed with each state of the context.
func (c *Client) Run(ctx context.Context, s *sample.Session, answered func(*rdma.Message), changed func(pe.State)) (err error) {
	h, err := s.Open(rdma.Config{ConnectTimeout: s.ConnectTimeout, EndWithLastConnection: true})
	if err != nil {
		return err
	}
	defer sample.Close(&err, h.Close)
	if c.Users != nil {
		defer c.Users.Wait()
	}
	c.RDMA = h.RDMA
	if c.Tasks, err = c.RDMA.Pool(64, pe.TaskDone[*rdma.Task], pe.TaskFailed[*rdma.Task]); err != nil {
		return err
	}
	if c.Local, err = mmap.Alloc(h.Device, Workers*SlotSize, mmap.LocalReadWrite); err != nil {
		return err
	}
	c.RDMA.OnConnection(func(_ *rdma.Connection, _ rdma.ConnectionState, err error) { c.RDMA.Fail(err) })
	c.RDMA.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			s.Peer.Connect(c.RDMA, func(conn *rdma.Connection, m *mmap.Map, err error) {
				c.Conn, c.Table = conn, m
				c.RDMA.Fail(err)
			})
		}
		changed(next)
	})
	if err := errors.Join(c.RDMA.Receive(Workers, 0, answered), c.RDMA.Start()); err != nil {
		return err
	}
	if err = h.Engine.Run(ctx); err == nil {
		s.Print("%d operations, every value verified", c.N)
	}
	return err
}
