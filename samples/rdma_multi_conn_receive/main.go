// Command rdma_multi_conn_receive receives one message over each of several
// connections from its peer, rdma_multi_conn_send. Receives are not tied to a
// connection: all connections of the context share them, and a receive that has
// completed names the connection that its message came from. The buffers come from
// a pool that divides one piece of memory.
package main

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	sample.Main(sample.Program{
		Name:           "rdma_multi_conn_receive",
		About:          "Receives a message from rdma_multi_conn_send over each of several connections.",
		Role:           sample.Responder,
		Peer:           "rdma_multi_conn_send",
		Sized:          true,
		Lists:          true,
		MaxConnections: 8,
	}, run)
}

type receiver struct {
	*sample.Session
	dev      verbs.Device
	engine   *pe.Engine
	rdma     *rdma.Context
	local    *mmap.Map
	receives *rdma.ReceivePool
	bufs     *bufinv.Pool
	parts    int      // receives that one message takes: one, unless it is long
	data     [][]byte // by connection: what has been received
	come     []int    // by connection: how many parts that is
	left     int      // receives that have not completed
}

func run(ctx context.Context, s *sample.Session) (err error) {
	p := &receiver{Session: s}

	// The device.
	if p.dev, err = device.Open(s.Device); err != nil {
		return err
	}
	defer sample.Close(&err, p.dev.Close)
	if err := rdma.Supports(p.dev, rdma.OpReceive); err != nil {
		return err
	}

	// Memory for the messages, to be divided into buffers, -sge of them for each
	// receive. The peer does not reach it, so it is not exported.
	p.parts = len(s.Parts(s.Capacity(), sample.MaxMessage))
	receives := s.Connections * p.parts
	room := min(s.Capacity(), sample.MaxMessage)
	buffers := bufinv.PoolConfig{Count: receives * s.SGE, Size: max(1, (room+s.SGE-1)/s.SGE)}
	if p.local, err = mmap.Alloc(p.dev, buffers.Count*buffers.Size, mmap.LocalReadWrite); err != nil {
		return err
	}
	defer sample.Close(&err, p.local.Close)

	// The engine, and the RDMA context on it.
	p.engine = pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, p.engine.Close)
	p.rdma, err = rdma.New(p.dev, rdma.Config{
		Engine:         p.engine,
		GIDIndex:       s.GIDIndex,
		MaxConnections: s.Connections,
		MTU:            s.MTU,
		ConnectTimeout: s.ConnectTimeout,
		AckTimeout:     s.AckTimeout,
		MaxRecvSGE:     s.SGE,
		Log:            s.Log,
	})
	if err != nil {
		return err
	}
	defer sample.Close(&err, p.rdma.Close)
	p.Peer.EndWith(p.rdma)

	// What its callbacks need is in p: they are its methods.
	if p.receives, err = p.rdma.ReceivePool(receives, p.done, p.failed); err != nil {
		return err
	}
	p.rdma.OnStateChange(p.stateChanged)
	if p.bufs, err = bufinv.NewPool(p.local, buffers); err != nil {
		return err
	}
	defer sample.Close(&err, p.bufs.Close)
	p.data = make([][]byte, s.Connections)
	p.come = make([]int, s.Connections)

	// From here on everything happens in callbacks, until the context is Idle.
	if err := p.rdma.Start(); err != nil {
		return err
	}
	return p.engine.Run(ctx)
}

func (p *receiver) stateChanged(prev, next pe.State) {
	p.Entered(next)
	switch next {
	case pe.Starting:
		p.connect()
	case pe.Running:
		p.rdma.Fail(p.receive())
	}
}

// connect makes all connections with the peer, each with the one of the same number. The
// context is Running once all of them have connected at both ends.
func (p *receiver) connect() {
	offer := oob.Offer{Connections: p.Connections}
	p.Peer.Exchange(context.Background(), p.rdma, offer, func(a *oob.Answer, err error) {
		if err != nil {
			p.rdma.Fail(err)
			return
		}
		for i, conn := range a.Connections {
			conn.SetUserData(i)
		}
	})
}

// receive submits as many receives as will be taken, all at once.
func (p *receiver) receive() error {
	var tasks []*rdma.ReceiveTask
	for range p.receives.Cap() {
		task, err := p.receives.Alloc(p.room())
		if err != nil {
			p.rdma.Fail(rdma.FreeAll(tasks))
			return err
		}
		task.SetUserData(&p.left)
		tasks = append(tasks, task)
	}
	n, err := rdma.SubmitAll(tasks, 0)
	p.left = n
	p.rdma.Fail(rdma.FreeAll(tasks[n:]))
	p.Log.Info().Int("receives", n).Msg("receives submitted")
	return err
}

// room is a list of buffers for one receive. Messages of no bytes need none.
func (p *receiver) room() *bufinv.Buf {
	if p.Capacity() == 0 {
		return nil
	}
	list := make([]*bufinv.Buf, p.SGE)
	for i := range list {
		list[i] = p.bufs.Alloc()
	}
	return bufinv.List(list...)
}

func (p *receiver) done(t *rdma.ReceiveTask) {
	p.rdma.Fail(p.show(t))
	p.finish(t)
}

// show keeps what a connection has brought, and checks and prints it when it is all
// there.
func (p *receiver) show(t *rdma.ReceiveTask) error {
	i := t.Connection().UserData().(int)
	p.data[i] = t.Destination().AppendBytes(p.data[i])
	p.come[i]++
	switch {
	case p.come[i] < p.parts:
		return nil
	case p.come[i] > p.parts:
		return fmt.Errorf("connection %d has brought %d messages, and %d were expected", i, p.come[i], p.parts)
	}
	data, err := p.Verify(p.data[i])
	if err != nil {
		return err
	}
	p.Print("received on connection %d: %s", i, sample.Describe(data))
	return nil
}

func (p *receiver) failed(t *rdma.ReceiveTask, err error) {
	p.rdma.Fail(err)
	p.finish(t)
}

// finish frees a receive, and its buffer with it. After the last one it waits for
// the peer to end: its device may still repeat a message whose acknowledgement was
// lost, and only a connection that is open acknowledges it again.
func (p *receiver) finish(t *rdma.ReceiveTask) {
	left := t.UserData().(*int)
	*left--
	p.rdma.Fail(t.Free())
	if *left > 0 || p.rdma.Err() != nil {
		return
	}
	p.Peer.Done(func(err error) {
		p.rdma.Fail(err)
		p.rdma.Stop()
	})
}
