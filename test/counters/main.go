// Command counters counts together with a second process of the same program, on sync events.
// The two may be on two hosts and on devices of different drivers. Each notices a lost step.
// It is run by tests.
//
// Without -writers the two alternate: each has an event, and adds 1 to the peer's when its own
// shows that the peer has added. -n is the number to which they count. With -writers, the
// first process adds to the event of the second over that many connections at the same time,
// and the second waits for the sum. With -local the second adds too, from as many goroutines.
//
// They exchange descriptors through the folder -dir.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	p := &program{}
	timeout := flag.Duration("timeout", time.Minute, "time limit")
	flag.StringVar(&p.device, "d", "soft-lo", "the device")
	flag.StringVar(&p.dir, "dir", "", "the folder that both programs use")
	flag.BoolVar(&p.first, "first", false, "start the counting; the other program does not have this flag")
	flag.Uint64Var(&p.n, "n", 100_000, "the even number to count to")
	flag.IntVar(&p.writers, "writers", 0, "number of connections that add concurrently; 0: two that alternate")
	flag.Uint64Var(&p.local, "local", 0, "number of additions by the second program itself, with -writers")
	flag.Parse()
	ctx, stop := context.WithTimeout(context.Background(), *timeout)
	defer stop()
	if err := p.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "count:", err)
		os.Exit(1)
	}
}

// program is one of the two processes.
type program struct {
	device, dir string
	first       bool
	n           uint64
	writers     int
	local       uint64

	ctx    context.Context
	engine *pe.Engine
	dev    verbs.Device
	rdma   *rdma.Connections
	events *syncevent.Context
	own    *syncevent.Event
	peers  *syncevent.Event
	conns  []*rdma.Connection
	count  counter
}

// counter is the work of a program once both ends are connected.
type counter interface {
	pools(p *program) error
	begin(p *program) error
	free() error
}

// connections returns the number of connections.
func (p *program) connections() int { return max(p.writers, 1) }

func (p *program) run(ctx context.Context) (err error) {
	p.ctx = ctx
	p.count = &alternating{}
	switch {
	case p.writers > 0 && p.first:
		p.count = &writers{}
	case p.writers > 0:
		p.count = &sum{}
	}
	if p.dev, err = device.Open(p.device); err != nil {
		return err
	}
	defer closing(&err, p.dev.Close)
	publishers := syncevent.PublishRemote
	if p.local > 0 {
		publishers |= syncevent.PublishLocal
	}
	p.own, err = syncevent.New(p.dev, syncevent.Config{Publishers: publishers, PollInterval: syncevent.MinPollInterval})
	if err != nil {
		return err
	}
	defer closing(&err, p.own.Close)
	if err := p.contexts(); err != nil {
		return err
	}
	defer closing(&err, p.close)
	begun := time.Now()
	if err := p.engine.Run(ctx); err != nil {
		return err
	}
	fmt.Printf("counted to %d in %v\n", p.n+p.local, time.Since(begun).Round(time.Millisecond))
	return nil
}

// contexts makes and starts the engine and its two contexts.
func (p *program) contexts() (err error) {
	p.engine = pe.New(pe.Config{})
	p.rdma, err = rdma.New(p.dev, rdma.Config{
		EndWithLastConnection: true, // the program ends when its peer does
		Engine:                p.engine, Permissions: mmap.RemoteAtomic, MaxConnections: p.connections(),
	})
	if err != nil {
		return err
	}
	if p.events, err = syncevent.NewContext(syncevent.ContextConfig{Engine: p.engine}); err != nil {
		return err
	}
	if err := p.count.pools(p); err != nil {
		return err
	}
	p.rdma.OnStateChange(p.stateChanged)
	return errors.Join(p.rdma.Start(), p.events.Start())
}

func (p *program) close() error {
	err := errors.Join(p.rdma.Close(), p.events.Close(), p.engine.Close())
	if p.peers != nil {
		err = errors.Join(err, p.peers.Close())
	}
	return err
}

func (p *program) stateChanged(_, next pe.State) {
	switch next {
	case pe.Starting:
		p.fail(p.connect())
	case pe.Running:
		p.fail(p.count.begin(p))
	case pe.Stopping:
		p.fail(p.count.free())
	}
}

// connect exchanges descriptors through the folder, and connects.
func (p *program) connect() error {
	var ours [][]byte
	for range p.connections() {
		conn, desc, err := p.rdma.Export()
		if err != nil {
			return err
		}
		p.conns = append(p.conns, conn)
		ours = append(ours, desc)
	}
	event, err := p.own.Export()
	if err != nil {
		return err
	}
	if err := p.write(append(ours, event)); err != nil {
		return err
	}
	p.runAside(func() func() error {
		theirs, err := p.read(len(ours) + 1)
		return func() error {
			for i, conn := range p.conns {
				if err == nil {
					err = conn.Connect(theirs[i])
				}
			}
			if err == nil {
				p.peers, err = syncevent.Import(p.dev, theirs[len(ours)])
			}
			return err
		}
	})
	return nil
}

// finish stops the contexts when the peer has finished too: the connection has to last until
// the peer's last task has completed.
func (p *program) finish() {
	p.runAside(func() func() error {
		err := p.meet()
		return func() error {
			p.stop()
			return err
		}
	})
}

// runAside runs f on a separate goroutine, and then the function that f returns on the engine's.
func (p *program) runAside(f func() func() error) {
	go func() {
		then := f()
		_ = p.engine.Do(func() { p.fail(then()) }) // fails only after the end of Run
	}()
}

func (p *program) stop() {
	p.rdma.Stop()
	p.events.Stop()
}

// fail ends the RDMA context with an error, and stops the other.
func (p *program) fail(err error) {
	if err != nil {
		p.rdma.Fail(err)
		p.events.Stop()
	}
}

func closing(err *error, f func() error) { *err = errors.Join(*err, f()) }
