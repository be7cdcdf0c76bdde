//go:build race

package rdma_test

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// In builds with the race detector, tasks and pools that are used while another
// goroutine drives the engine say so.
func TestTasksOnAForeignGoroutine(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	writes := must(r.a.ctx.Pool(2, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	recvs := must(r.a.ctx.ReceivePool(2, func(*rdma.ReceiveTask) {}, func(*rdma.ReceiveTask, error) {}))
	r.connect(1)
	conn := r.a.conns[0]
	task, recv := must(writes.Write(conn, nil, nil)), must(recvs.Alloc(nil))
	entered, leave := make(chan struct{}), make(chan struct{})
	require.NoError(t, r.engine.Do(func() { close(entered); <-leave }))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { assert.ErrorIs(t, r.engine.Run(ctx), context.Canceled) })
	<-entered
	_, alloc := writes.Write(conn, r.a.bufs.Source(r.a.mem, 0, 8), nil)
	_, allocReceive := recvs.Alloc(nil)
	_, pool := r.a.ctx.Pool(1, func(*rdma.Task) {}, func(*rdma.Task, error) {})
	_, all := rdma.SubmitAll([]*rdma.Task{task}, 0)
	for _, c := range []struct {
		call string
		err  error
	}{
		{`allocate from pool "task"`, alloc},
		{`allocate from pool "receive"`, allocReceive},
		{"make a pool of tasks", pool},
		{"submit a write", all},
		{"submit a write", task.Submit()},
		{"submit a write", task.TrySubmit()},
		{"submit a receive", recv.Submit(pe.Aggregate)},
		{"set the source", task.SetSource(r.a.bufs.Source(r.a.mem, 0, 8))},
		{"set the connection", task.SetConnection(conn)},
		{"set the destination", recv.SetDestination(nil)},
		{`free a task of pool "task"`, task.Free()},
		{"receive messages", r.a.ctx.Receive(1, 8, func(*rdma.Message) {})},
		{"close a connection", conn.Close()},
	} {
		assert.ErrorIs(t, c.err, pe.ErrBusy, c.call)
		assert.ErrorContains(t, c.err, c.call)
		assert.ErrorContains(t, c.err, "another goroutine is driving the engine")
		assert.ErrorContains(t, c.err, "use Engine.Do or package await")
	}
	close(leave)
	cancel()
	wg.Wait()
	require.NoError(t, task.Free())
	require.NoError(t, recv.Free())
}

// Calls without an error panic there, and those that any goroutine may make work.
func TestGettersOnAForeignGoroutine(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	r.connect(1)
	conn := r.a.conns[0]
	conn.SetUserData("mine")
	r.a.ctx.SetUserData("mine")
	entered, leave := make(chan struct{}), make(chan struct{})
	require.NoError(t, r.engine.Do(func() {
		assert.Equal(t, "mine", conn.UserData(), "in a callback")
		assert.Equal(t, "mine", r.a.ctx.UserData(), "in a callback")
		close(entered)
		<-leave
	}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.engine.Run(ctx) }) // until the last connection has ended, or ctx
	<-entered
	for call, f := range map[string]func(){
		"read the user data of a connection":    func() { conn.UserData() },
		"set the user data of a connection":     func() { conn.SetUserData(1) },
		"read the user data of a context":       func() { r.a.ctx.UserData() },
		"set the user data of a context":        func() { r.a.ctx.SetUserData(1) },
		"set the function for changes of state": func() { r.a.ctx.OnStateChange(nil) },
		"watch the state of a context":          func() { r.a.ctx.Watch(func(_, _ pe.State) {}) },
		"set the function for connections":      func() { r.a.ctx.OnConnection(nil) },
		"list the connections":                  func() { r.a.ctx.List() },
		"watch the connections":                 func() { r.a.ctx.WatchConnections(nil) },
	} {
		err, _ := panicOf(f).(error)
		assert.ErrorIs(t, err, pe.ErrBusy, call)
		assert.ErrorContains(t, err, call)
	}
	close(leave)
	// The others are read while they change.
	peer := r.b.conns[0]
	wg.Go(func() { assert.NoError(t, r.engine.Do(func() { peer.Close() })) })
	for conn.State() == rdma.Ready {
		assert.NoError(t, conn.DialError())
		assert.Equal(t, peer.LocalAddr(), conn.PeerAddr())
		assert.Equal(t, peer.QPN(), conn.PeerQPN())
		assert.Equal(t, peer.MTU(), conn.MTU())
		assert.Equal(t, peer.MaxReadAtomic(), conn.MaxReadAtomic())
		assert.Nil(t, conn.AcceptData())
		assert.Equal(t, conn.QPN(), conn.QP().Num())
		conn.Counters()
	}
	assert.ErrorIs(t, conn.Err(), rdma.ErrPeerClosed)
	cancel()
	wg.Wait()
	assert.Equal(t, "mine", conn.UserData(), "nobody drives the engine any more")
}

// A dial replaces its queue pair where the peer believes that it is connected: meanwhile any
// goroutine may ask for it.
func TestQueuePairOfADialOnAForeignGoroutine(t *testing.T) {
	cs := newDialRig(t)
	server, client := cs.add(rdma.Config{}), cs.add(rdma.Config{})
	cs.start(server, client)
	conn := must(client.Dial(netip.AddrPortFrom(server.GID().GID.Addr(), 7).String(), rdma.DialConfig{}))
	first := conn.QPN()
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !done.Load() {
			assert.NotNil(t, conn.QP())
			conn.Counters()
		}
	})
	for range 3 {
		cs.engine.Progress()
		require.NoError(t, rdma.ReplaceQP(conn))
	}
	done.Store(true)
	wg.Wait()
	assert.NotEqual(t, first, conn.QPN())
	assert.Equal(t, conn.QPN(), conn.QP().Num())
}

func panicOf(f func()) (v any) {
	defer func() { v = recover() }()
	f()
	return nil
}
