package rdma_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

func TestConnectPair(t *testing.T) {
	r := newRig(t, rdma.Config{MaxConnections: 1}, rdma.Config{MaxConnections: 3})
	_, _, err := rdma.ConnectPair(r.a.ctx, r.b.ctx)
	require.ErrorIs(t, err, pe.ErrBadState)
	_, _, err = rdma.ConnectPair(r.a.ctx, nil)
	require.ErrorIs(t, err, rdma.ErrInvalid)

	require.NoError(t, r.b.ctx.Start())
	_, _, err = rdma.ConnectPair(r.b.ctx, r.a.ctx)
	require.ErrorIs(t, err, pe.ErrBadState, "one of them is Idle")
	require.Empty(t, r.b.ctx.List())
	require.NoError(t, r.a.ctx.Start())
	atA, atB, err := rdma.ConnectPair(r.a.ctx, r.b.ctx)
	require.NoError(t, err)
	require.Same(t, r.a.ctx, atA.Context())
	require.Same(t, r.b.ctx, atB.Context())
	r.until("both run", func() bool { return r.a.ctx.State() == pe.Running && r.b.ctx.State() == pe.Running })
	assert.Equal(t, atA.QPN(), atB.PeerQPN())

	// No room at one end: the other has it back.
	for i := range 5 {
		_, _, err = rdma.ConnectPair(r.b.ctx, r.a.ctx)
		require.ErrorIs(t, err, rdma.ErrFull)
		r.until("b has its place back", func() bool { return r.b.closed() == i+2 })
	}

	// A context with itself has two connections.
	one, two, err := rdma.ConnectPair(r.b.ctx, r.b.ctx)
	require.NoError(t, err)
	require.NotSame(t, one, two)
	r.until("both are ready", func() bool { return one.State() == rdma.Ready && two.State() == rdma.Ready })
	assert.Equal(t, one.QPN(), two.PeerQPN())
}

// A client and a server in one program, without descriptors.
func ExampleConnectPair() {
	dev := must(device.Open("soft-lo"))
	memory := must(mmap.Alloc(dev, 64, mmap.LocalReadWrite))
	n := copy(memory.Bytes(), "hello")
	engine := pe.New(pe.Config{})
	client := must(rdma.New(dev, rdma.Config{Engine: engine, Name: "client"}))
	server := must(rdma.New(dev, rdma.Config{Engine: engine, Name: "server", EndWithLastConnection: true}))
	sends := must(client.Pool(1, pe.FreeTask, pe.FailContext))
	err := server.Receive(1, 64, func(m *rdma.Message) { fmt.Printf("%s\n", m.Bytes()) })

	if err = errors.Join(err, client.Start(), server.Start()); err != nil {
		fmt.Println(err)
	}
	conn, _, err := rdma.ConnectPair(client, server)
	client.Fail(err) // nil does nothing
	client.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			task, err := sends.Send(conn, bufinv.Source(memory, 0, n))
			client.Fail(pe.SubmitOrFree(task, err))
			client.Fail(client.StopWhenDone())
		}
	})
	fmt.Println(engine.Run(context.Background()))
	if err := errors.Join(engine.Close(), dev.Close()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// hello
	// <nil>
}
