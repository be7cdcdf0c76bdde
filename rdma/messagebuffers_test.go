package rdma_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
)

// message sends from a to b, and waits until the send has ended.
func (r *rig) message(pool *rdma.Pool, sends *outcome[*rdma.Task], off, n int) {
	r.t.Helper()
	before := sends.count()
	task := must(pool.Send(r.a.conns[0], r.a.bufs.Source(r.a.mem, off, n)))
	require.NoError(r.t, task.Submit())
	r.until("the send has ended", func() bool { return sends.count() > before })
	require.NoError(r.t, task.Free())
}

// receiveKinds are the ways to receive messages without tasks.
var receiveKinds = map[string]func(c *rdma.Connections, n, size int, f func(*rdma.Message)) error{
	"Receive": func(c *rdma.Connections, n, size int, f func(*rdma.Message)) error { return c.Receive(n, size, f) },
	"ReceivePerConnection": func(c *rdma.Connections, n, size int, f func(*rdma.Message)) error {
		return c.ReceivePerConnection(n, size, f)
	},
}

// A receive that is submitted again starts from an empty buffer; what stands in front
// of its data stays.
func TestReceiveSubmittedAgain(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	var sends outcome[*rdma.Task]
	var recvs outcome[*rdma.ReceiveTask]
	pool := must(r.a.ctx.Pool(1, sends.ok, sends.bad))
	recvPool := must(r.b.ctx.ReceivePool(1, recvs.ok, recvs.bad))
	r.connect(1)
	copy(r.a.mem.Bytes(), "one two three four")
	buf := r.b.bufs.Target(r.b.mem, 0, 8)
	require.NoError(t, buf.SetData(2, 6), "no room is left behind it")
	copy(r.b.mem.Bytes(), "> ")
	recv := must(recvPool.Alloc(buf))
	for i, word := range [][2]int{{0, 3}, {4, 3}, {8, 5}, {14, 4}} {
		require.NoError(t, recv.TrySubmit())
		assert.Zero(t, recv.Destination().DataLen())
		r.message(pool, &sends, word[0], word[1])
		r.until("it has arrived", func() bool { return len(recvs.done) == i+1 })
		assert.Equal(t, "one two three four"[word[0]:word[0]+word[1]], string(recv.Destination().Bytes()))
		assert.Equal(t, "> ", string(r.b.mem.Bytes()[:2]))
	}

	// A submission that is refused leaves the data alone.
	require.NoError(t, r.b.ctx.Stop())
	require.ErrorIs(t, recv.Submit(), pe.ErrBadState)
	assert.Equal(t, "four", string(recv.Destination().Bytes()))
	require.NoError(t, recv.Free())
}

// A message that is too long says how much there was room for, and why.
func TestReceiveTooLong(t *testing.T) {
	for name, appends := range map[string]bool{"empty": false, "append": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rdma.Config{}, rdma.Config{})
			var sends outcome[*rdma.Task]
			var recvs outcome[*rdma.ReceiveTask]
			pool := must(r.a.ctx.Pool(1, sends.ok, sends.bad))
			recvPool := must(r.b.ctx.ReceivePool(1, recvs.ok, recvs.bad))
			r.connect(1)
			recv := must(recvPool.Alloc(r.b.bufs.Target(r.b.mem, 0, 8)))
			require.NoError(t, recv.SetAppend(appends))
			want := "room for 8 bytes; make it as large"
			if appends {
				want = "room for 3 bytes after the 5 in it"
			}
			for i, n := range []int{5, 9} {
				require.NoError(t, recv.Submit())
				r.message(pool, &sends, 0, n)
				r.until("the receive has ended", func() bool { return recvs.count() == i+1 })
			}
			require.Len(t, recvs.errs, 1)
			require.ErrorIs(t, recvs.errs[0], rdma.ErrLocalLength)
			require.ErrorContains(t, recvs.errs[0], want)
			require.Len(t, sends.errs, 1)
			require.ErrorContains(t, sends.errs[0], "make the peer's receives as large")
			require.NoError(t, recv.Free())
		})
	}
}

// Receives are posted before there is a connection, and no message meets none.
func TestReceivesBeforeTheFirstPeer(t *testing.T) {
	for _, kind := range []string{"tasks in Starting", "Receive", "ReceivePerConnection"} {
		t.Run(kind, func(t *testing.T) {
			const n = 8
			dev := closed(t, must(soft.Open(soft.Config{})))
			r := newRigOn(t, openSoft(t), dev, rdma.Config{}, rdma.Config{})
			var sends outcome[*rdma.Task]
			pool := must(r.a.ctx.Pool(n, sends.ok, sends.bad))
			got := 0
			var recvs outcome[*rdma.ReceiveTask]
			var recvPool *rdma.ReceivePool
			if receive := receiveKinds[kind]; receive != nil {
				require.NoError(t, receive(r.b.ctx, n, 8, func(*rdma.Message) { got++ }))
			} else {
				recvs.then = func(*rdma.ReceiveTask) { got++ }
				recvPool = must(r.b.ctx.ReceivePool(n, recvs.ok, recvs.bad))
			}
			require.NoError(t, r.a.ctx.Start())
			require.NoError(t, r.b.ctx.Start())
			for i := range n {
				if recvPool != nil {
					require.NoError(t, must(recvPool.Alloc(r.b.bufs.Target(r.b.mem, 8*i, 8))).Submit())
				}
			}
			require.Equal(t, pe.Starting, r.b.ctx.State())
			r.link()
			r.a.ctx.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, _ error) {
				for range n {
					if state == rdma.Ready {
						require.NoError(t, must(pool.Send(conn, r.a.bufs.Source(r.a.mem, 0, 8))).Submit())
					}
				}
			})
			r.until("all have arrived", func() bool { return got == n && sends.count() == n })
			assert.Zero(t, counter(t, dev, "send_rnr_err"))
			require.NoError(t, rdma.FreeAll(sends.done))
			require.NoError(t, rdma.FreeAll(recvs.done))
		})
	}
}

// Messages are taken in order, many more than there are receives, of all kinds, and the
// buffers are used again; with the last message the context ends without an error.
func TestReceive(t *testing.T) {
	for kind, receive := range receiveKinds {
		t.Run(kind, func(t *testing.T) { receivesMessages(t, receive) })
	}
}

func receivesMessages(t *testing.T, receive func(c *rdma.Connections, n, size int, f func(*rdma.Message)) error) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	var sends outcome[*rdma.Task]
	var imms outcome[*rdma.Task]
	var writes outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(1, sends.ok, sends.bad))
	immPool := must(r.a.ctx.Pool(1, imms.ok, imms.bad))
	writePool := must(r.a.ctx.Pool(1, writes.ok, writes.bad))
	var got []string
	var kept *rdma.Message
	require.NoError(t, receive(r.b.ctx, 3, 100, func(m *rdma.Message) {
		imm, ok := m.Imm()
		assert.Same(t, r.b.conns[0], m.Connection())
		assert.Equal(t, pe.Running, r.b.ctx.State())
		got = append(got, fmt.Sprintf("%v %q %d %d %v", m.Opcode(), m.Bytes(), m.Length(), imm, ok))
		kept = m
	}))
	require.ErrorIs(t, receive(r.b.ctx, 3, 100, func(*rdma.Message) {}), rdma.ErrInvalid)
	for range 2 { // two runs
		got = nil
		r.a.conns, r.b.conns = nil, nil
		r.connect(1)
		require.ErrorIs(t, receive(r.b.ctx, 1, 1, func(*rdma.Message) {}), pe.ErrBadState)
		copy(r.a.mem.Bytes(), "abcdefghijklmnopqrstuvwxyz")
		imm := must(immPool.SendImm(r.a.conns[0], nil, 7))
		require.NoError(t, imm.Submit())
		write := must(writePool.WriteImm(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 5), r.a.bufs.Target(r.a.peer, 4096, 5), 9))
		require.NoError(t, write.Submit())
		want := []string{`send with immediate "" 0 7 true`, `write with immediate "" 5 9 true`}
		for i := range 20 {
			r.message(pool, &sends, i, 3)
			want = append(want, fmt.Sprintf("send %q 3 0 false", r.a.mem.Bytes()[i:i+3]))
		}
		r.until("all have arrived", func() bool { return len(got) == len(want) })
		assert.Equal(t, want, got)
		assert.Nil(t, kept.Bytes(), "a message that was kept has nothing any more")
		assert.Zero(t, r.b.ctx.Allocated())
		assert.Equal(t, "abcde", string(r.b.mem.Bytes()[4096:4101]))
		require.NoError(t, imm.Free())
		require.NoError(t, write.Free())
		require.NoError(t, r.a.ctx.Stop())
		r.until("both are Idle", func() bool { return r.a.ctx.State() == pe.Idle && r.b.ctx.State() == pe.Idle })
		require.NoError(t, r.b.ctx.Err())
	}
}

// A message without bytes leaves its receive to the next one before the function is
// called: what the peer sends because of an answer meets it, even while the function runs.
func TestReceiveIsPostedBeforeTheAnswer(t *testing.T) {
	for kind, receive := range receiveKinds {
		for name, size := range map[string]int{"no buffers": 0, "buffers": 64} {
			t.Run(kind+", "+name, func(t *testing.T) { postsBeforeTheAnswer(t, size, receive) })
		}
	}
}

func postsBeforeTheAnswer(t *testing.T, size int, receive func(c *rdma.Connections, n, size int, f func(*rdma.Message)) error) {
	r := &rig{t: t, engine: pe.New(pe.Config{})}
	t.Cleanup(func() { require.NoError(t, r.engine.Close()) })
	server, client := r.sideThatStays(openSoft(t), rdma.Config{}), newClient(t)
	answers := anyPool(server.ctx)
	acknowledged, over := 0, false
	require.NoError(t, receive(server.ctx, 1, size, func(m *rdma.Message) {
		imm, _ := m.Imm()
		if over = imm == 2; over {
			return
		}
		task, err := answers.SendImm(m.Connection(), nil, 0)
		require.NoError(t, pe.SubmitOrFree(task, err, func(t *rdma.Task, _ error) { _ = t.Free() }))
		client.until("the peer has the answer, and its next message has met a receive", func() bool { return acknowledged == 2 })
	}))
	require.NoError(t, server.ctx.Start())

	require.NoError(t, client.ctx.Stop())
	client.until("it is Idle", func() bool { return client.ctx.State() == pe.Idle })
	pool := anyPool(client.ctx)
	var conn *rdma.Connection
	send := func(imm uint32) {
		task, err := pool.SendImm(conn, nil, imm)
		require.NoError(t, pe.SubmitOrFree(task, err, func(task *rdma.Task, err error) {
			assert.NoError(t, errors.Join(err, task.Free()))
			acknowledged++
		}))
	}
	require.NoError(t, client.ctx.Receive(1, 0, func(*rdma.Message) { send(2) }))
	require.NoError(t, client.ctx.Start())
	client.until("it runs", func() bool { return client.ctx.State() == pe.Running })
	conn, desc := must2(client.ctx.Export())
	peer, peerDesc := must2(server.ctx.Export())
	require.NoError(t, conn.Connect(peerDesc))
	require.NoError(t, peer.Connect(desc))
	client.until("it is Ready", func() bool {
		_, err := r.engine.Progress()
		require.NoError(t, err)
		return conn.State() == rdma.Ready && peer.State() == rdma.Ready
	})
	send(1)
	r.until("the second message is here", func() bool {
		_, err := client.rig.engine.Progress()
		require.NoError(t, err)
		return over
	})
	assert.Zero(t, counter(t, server.dev.(*soft.Device), "send_rnr_err"))
}

func TestReceiveRefusals(t *testing.T) {
	c := must(rdma.New(openDevice(t), rdma.Config{}))
	f := func(*rdma.Message) {}
	for name, err := range map[string]error{
		"n":    c.Receive(0, 8, f),
		"many": c.Receive(pe.MaxTasks+1, 8, f),
		"size": c.Receive(1, -1, f),
		"all":  c.Receive(pe.MaxTasks, math.MaxInt/2, f),
	} {
		assert.ErrorIs(t, err, rdma.ErrRange, name)
		assert.ErrorContains(t, err, `context "rdma"`)
	}
	require.ErrorIs(t, c.Receive(1, 8, nil), rdma.ErrInvalid)
	require.NoError(t, c.Receive(5, 0, f))
	require.NoError(t, c.Close())
}

// A message that is too long ends its connection, and no other; the receive is posted
// again.
func TestReceiveMessageTooLong(t *testing.T) {
	for kind, receive := range receiveKinds {
		t.Run(kind, func(t *testing.T) { failsMessageTooLong(t, receive) })
	}
}

func failsMessageTooLong(t *testing.T, receive func(c *rdma.Connections, n, size int, f func(*rdma.Message)) error) {
	engine := pe.New(pe.Config{})
	r := &rig{t: t, engine: engine}
	t.Cleanup(func() { require.NoError(t, engine.Close()) })
	r.a = r.sideThatStays(openSoft(t), rdma.Config{MaxConnections: 2})
	r.b = r.sideThatStays(openSoft(t), rdma.Config{MaxConnections: 2})
	var sends outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(1, sends.ok, sends.bad))
	got := 0
	require.NoError(t, receive(r.b.ctx, 1, 16, func(*rdma.Message) { got++ }))
	r.connect(2)
	task := must(pool.Send(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 17)))
	require.NoError(t, task.Submit())
	// The completion and the event come between two passes of the engine.
	require.Eventually(t, func() bool { return counter(t, r.b.dev.(*soft.Device), "resp_invalid_request_errors") > 0 }, time.Minute, time.Millisecond)
	r.until("both ends have noticed", func() bool {
		return r.a.conns[0].State() == rdma.Failed && r.b.conns[0].State() == rdma.Failed
	})
	require.ErrorIs(t, sends.errs[0], rdma.ErrRemoteInvalid)
	require.ErrorIs(t, r.b.conns[0].Err(), rdma.ErrLocalLength)
	require.ErrorContains(t, r.b.conns[0].Err(), "hold 16 bytes; call it with the size of the largest message")
	require.NoError(t, task.Free())
	for range 3 {
		task := must(pool.Send(r.a.conns[1], r.a.bufs.Source(r.a.mem, 0, 16)))
		require.NoError(t, task.Submit())
		n := got
		r.until("it has arrived", func() bool { return got == n+1 && !task.InFlight() })
		require.NoError(t, task.Free())
	}
	require.Equal(t, pe.Running, r.b.ctx.State())
}

// The function may panic, stop the context, or close the connection: no receive is lost.
func TestReceiveFunctionMisbehaves(t *testing.T) {
	for kind, receive := range receiveKinds {
		t.Run(kind, func(t *testing.T) { survivesFunction(t, receive) })
	}
}

func survivesFunction(t *testing.T, receive func(c *rdma.Connections, n, size int, f func(*rdma.Message)) error) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	var sends outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(1, sends.ok, sends.bad))
	n := 0
	require.NoError(t, receive(r.b.ctx, 1, 8, func(m *rdma.Message) {
		switch n++; n {
		case 1:
			panic("mine")
		case 3:
			require.NoError(t, m.Connection().Close())
			require.NoError(t, r.b.ctx.Stop())
		}
	}))
	r.connect(1)
	task := must(pool.Send(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 8)))
	require.NoError(t, task.Submit())
	require.PanicsWithValue(t, "mine", func() { r.until("it panics", func() bool { return false }) })
	for range 2 {
		r.until("it is back", func() bool { return !task.InFlight() })
		require.NoError(t, task.Submit())
	}
	r.until("it has stopped", func() bool { return r.b.ctx.State() == pe.Idle && !task.InFlight() })
	require.Equal(t, 3, n)
	require.NoError(t, r.b.ctx.Err())
	require.NoError(t, task.Free())
}

func TestReceiveAllocatesNothing(t *testing.T) {
	for kind, receive := range receiveKinds {
		t.Run(kind, func(t *testing.T) { receivesWithoutAllocation(t, receive) })
	}
}

func receivesWithoutAllocation(t *testing.T, receive func(c *rdma.Connections, n, size int, f func(*rdma.Message)) error) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	pool := must(r.a.ctx.Pool(1, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	got := 0
	require.NoError(t, receive(r.b.ctx, 4, 64, func(m *rdma.Message) { got += len(m.Bytes()) }))
	r.connect(1)
	r.settle()
	task := must(pool.Send(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 64)))
	var failure error
	assert.Zero(t, testing.AllocsPerRun(2000, func() {
		want := got + 64
		failure = errors.Join(failure, task.Submit())
		for (got < want || task.InFlight()) && failure == nil {
			_, failure = r.engine.Progress()
		}
	}))
	require.NoError(t, failure)
	require.NoError(t, task.Free())
}

// A server: Run goes on without connections, however its clients end, until it
// is stopped.
func TestRunServesUntilStopped(t *testing.T) {
	dev := openSoft(t)
	engine := pe.New(pe.Config{Spin: -1})
	server := must(rdma.New(dev, rdma.Config{Engine: engine, Name: "server"}))
	served := make(chan string, 8)
	require.NoError(t, server.Receive(4, 64, func(m *rdma.Message) { served <- string(m.Bytes()) }))
	gone := make(chan error, 8)
	server.OnConnection(func(_ *rdma.Connection, s rdma.ConnectionState, err error) {
		if s == rdma.Closed {
			gone <- err
		}
	})
	require.NoError(t, server.Start())
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	ran := make(chan error, 1)
	go func() { ran <- engine.Run(ctx) }()

	type export struct {
		conn *rdma.Connection
		desc []byte
	}
	for i := range 3 {
		client := newClient(t)
		ends := make(chan export, 1)
		require.NoError(t, engine.Do(func() {
			conn, desc, err := server.Export()
			assert.NoError(t, err)
			ends <- export{conn, desc}
		}))
		theirs := <-ends
		conn, desc := must2(client.ctx.Export())
		require.NoError(t, conn.Connect(theirs.desc))
		require.NoError(t, engine.Do(func() { assert.NoError(t, theirs.conn.Connect(desc)) }))
		client.until("it is Ready", func() bool { return conn.State() == rdma.Ready })
		text := fmt.Sprintf("client %d", i)
		n := copy(client.mem.Bytes(), text)
		task := must(anyPool(client.ctx).Send(conn, client.bufs.Source(client.mem, 0, n)))
		require.NoError(t, task.Submit())
		client.until("it is sent", func() bool { return !task.InFlight() })
		require.Equal(t, text, <-served)
		require.NoError(t, task.Free())
		require.NoError(t, client.ctx.Close())
		require.ErrorIs(t, <-gone, rdma.ErrPeerClosed)
		require.Equal(t, pe.Running, server.State())
	}
	over := errors.New("over")
	stop(over)
	require.ErrorIs(t, <-ran, over)
	require.NoError(t, server.Close())
	require.NoError(t, engine.Close())
}

// newClient is a rig of one side, Running without connections.
func newClient(t *testing.T) *side2 {
	r := &rig{t: t, engine: pe.New(pe.Config{})}
	t.Cleanup(func() { require.NoError(t, r.engine.Close()) })
	s := r.sideThatStays(openSoft(t), rdma.Config{})
	require.NoError(t, s.ctx.Start())
	r.until("it runs", func() bool { return s.ctx.State() == pe.Running })
	return &side2{s, r}
}

type side2 struct {
	*side
	rig *rig
}

func (s *side2) until(what string, done func() bool) { s.rig.until(what, done) }

// A message that comes while the context still waits for another connection can be
// answered.
func TestAnswerWhileStarting(t *testing.T) {
	for kind, receive := range receiveKinds {
		t.Run(kind, func(t *testing.T) { answersWhileStarting(t, receive) })
	}
}

func answersWhileStarting(t *testing.T, receive func(c *rdma.Connections, n, size int, f func(*rdma.Message)) error) {
	r := newRig(t, rdma.Config{MaxConnections: 2}, rdma.Config{MaxConnections: 2})
	pool := must(r.a.ctx.Pool(1, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	answers := must(r.b.ctx.Pool(1, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	var answer *rdma.Task
	answered := false
	require.NoError(t, receive(r.a.ctx, 1, 8, func(*rdma.Message) { answered = true }))
	require.NoError(t, receive(r.b.ctx, 1, 8, func(m *rdma.Message) {
		require.Equal(t, pe.Starting, r.b.ctx.State())
		answer = must(answers.Send(m.Connection(), nil))
		require.NoError(t, answer.Submit())
	}))
	require.NoError(t, r.a.ctx.Start())
	require.NoError(t, r.b.ctx.Start())
	late, _ := must2(r.b.ctx.Export()) // its peer does not come
	_, err := pool.Send(late, nil)
	require.ErrorIs(t, err, rdma.ErrInvalid, "of another context")
	conn, _ := r.link()
	r.until("it is Ready", func() bool { return conn.State() == rdma.Ready })
	task := must(pool.Send(conn, nil))
	require.NoError(t, task.Submit())
	r.until("the answer is here", func() bool { return answered && !task.InFlight() && !answer.InFlight() })
	require.Equal(t, pe.Starting, r.b.ctx.State())
	require.NoError(t, rdma.FreeAll([]*rdma.Task{task, answer}))
}
