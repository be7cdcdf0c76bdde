// Command rdma_multi_conn_send sends one message over each of several connections
// to its peer, rdma_multi_conn_receive. All connections belong to one RDMA context,
// and all tasks come from one pool; a task names the connection it runs on. The
// descriptors of the connections travel together, in order.
package main

import (
	"context"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	sample.Main(sample.Program{
		Name:           "rdma_multi_conn_send",
		About:          "Sends a message to rdma_multi_conn_receive over each of several connections.",
		Role:           sample.Requester,
		Peer:           "rdma_multi_conn_receive",
		Text:           &sample.Text{Short: "s", Long: "send-string", Default: "Hello from the sender!"},
		Sized:          true,
		MaxConnections: 8,
	}, run)
}

type sender struct {
	*sample.Session
	dev    verbs.Device
	engine *pe.Engine
	rdma   *rdma.Context
	sends  *rdma.SendPool
	bufs   *bufinv.Inventory
	local  *mmap.Map
	conns  []*rdma.Connection
	left   int // tasks that have not completed
	err    error
}

func run(ctx context.Context, s *sample.Session) (err error) {
	p := &sender{Session: s}

	// The device.
	if p.dev, err = device.Open(s.Device); err != nil {
		return err
	}
	defer sample.Close(&err, p.dev.Close)
	if err := rdma.Supports(p.dev, rdma.OpSend); err != nil {
		return err
	}

	// Memory with the message. The peer does not reach it, so it is not exported.
	payload := s.Payload()
	if p.local, err = mmap.Alloc(p.dev, len(payload), mmap.LocalReadWrite); err != nil {
		return err
	}
	defer sample.Close(&err, p.local.Close)
	copy(p.local.Bytes(), payload)

	// The engine, and the RDMA context on it.
	if p.engine, err = pe.New(pe.Config{Log: s.Log}); err != nil {
		return err
	}
	defer sample.Close(&err, p.engine.Close)
	p.rdma, err = rdma.New(p.dev, rdma.Config{
		GIDIndex:       s.GIDIndex,
		MaxConnections: s.Connections,
		Log:            s.Log,
	})
	if err != nil {
		return err
	}
	defer sample.Close(&err, p.rdma.Close)
	if err := p.engine.Connect(p.rdma); err != nil {
		return err
	}

	// What its callbacks need is in p: they are its methods.
	if p.sends, err = p.rdma.SendPool(s.Connections, p.done, p.failed); err != nil {
		return err
	}
	p.rdma.OnStateChange(p.stateChanged)
	if p.bufs, err = bufinv.New(s.Connections); err != nil {
		return err
	}
	defer sample.Close(&err, p.bufs.Close)

	// From here on everything happens in callbacks, until the context is Idle.
	if err := p.rdma.Start(); err != nil {
		return err
	}
	if err := p.engine.Run(ctx); err != nil {
		return err
	}
	if p.err == nil {
		p.err = p.rdma.Err()
	}
	return p.err
}

func (p *sender) stateChanged(prev, next pe.State) {
	p.Log.Info().Msgf("the context is %v", next)
	switch next {
	case pe.Starting:
		p.fail(p.connect())
	case pe.Running:
		p.fail(p.send())
	}
}

// connect makes all connections, and gives the peer their descriptors in that
// order. The context is Running once all of them have connected at both ends.
func (p *sender) connect() error {
	var ours sample.Descriptors
	var conns []*rdma.Connection
	for i := range p.Connections {
		conn, desc, err := p.rdma.Export()
		if err != nil {
			return err
		}
		conn.SetUserData(i)
		conns = append(conns, conn)
		ours.Connections = append(ours.Connections, desc)
	}
	p.conns = conns
	p.Exchange(p.engine, ours, func(theirs sample.Descriptors, err error) {
		for i := 0; i < len(conns) && err == nil; i++ {
			err = conns[i].Connect(theirs.Connections[i])
		}
		p.fail(err)
	})
	return nil
}

// send submits a task for every connection. They all send the same memory.
func (p *sender) send() error {
	for i, conn := range p.conns {
		task, err := p.sends.Alloc(conn, p.bufs.Source(p.local, 0, p.local.Len()))
		if err != nil {
			return err
		}
		task.SetUserData(&p.left)
		p.Print("sending on connection %d: %s", i, sample.Describe(task.Source().Bytes()))
		if err := task.Submit(); err != nil {
			p.fail(task.Free())
			return err
		}
		p.left++
	}
	return nil
}

func (p *sender) done(t *rdma.SendTask) {
	p.Log.Info().Msgf("the message on connection %d was sent", t.Connection().UserData())
	p.finish(t)
}

func (p *sender) failed(t *rdma.SendTask, err error) {
	p.fail(err)
	p.finish(t)
}

// finish frees a task, and its buffers with it, and stops the context after the
// last one.
func (p *sender) finish(t *rdma.SendTask) {
	left := t.UserData().(*int)
	*left--
	p.fail(t.Free())
	if *left == 0 {
		p.rdma.Stop()
	}
}

// fail keeps the first error, and stops the context.
func (p *sender) fail(err error) {
	if err == nil {
		return
	}
	if p.err == nil {
		p.err = err
	}
	p.rdma.Stop()
}
