package await_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// receiverRig is a rig with a receiver at b and pools to send at a.
type receiverRig struct {
	*rig
	rx     *await.Receiver
	sends  *rdma.Pool
	plain  *rdma.Pool
	writes *rdma.Pool
}

func newReceiverRig(t testing.TB, n, size int) *receiverRig {
	t.Helper()
	i := &receiverRig{rig: newRig(t)}
	var err error
	i.rx, err = await.NewReceiver(i.b, n, size)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, i.rx.Close()) })
	i.sends, err = i.a.Pool(4, pe.TaskDone, pe.TaskFailed)
	require.NoError(t, err)
	i.plain, err = i.a.Pool(4, pe.TaskDone, pe.TaskFailed)
	require.NoError(t, err)
	i.writes, err = i.a.Pool(4, pe.TaskDone, pe.TaskFailed)
	require.NoError(t, err)
	return i
}

// send sends a number.
func (i *receiverRig) send(n uint32) error {
	return await.Task(background, i.engine, func() (*rdma.Task, error) {
		at := int(n%8) * 8
		binary.BigEndian.PutUint32(i.memA.Bytes()[at:], n)
		return i.sends.SendImm(i.conn, i.bufs.Source(i.memA, at, 4), n)
	}, nil)
}

// Many more messages than receives arrive, in order, over several iterations, and
// none is lost.
func TestMessages(t *testing.T) {
	i := newReceiverRig(t, 4, 64)
	i.connect(t)
	const total = 300
	sent := make(chan error, 1)
	go func() {
		for n := range uint32(total) {
			if err := i.send(n); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	next := uint32(0)
	for next < total {
		for msg, err := range i.rx.Messages(background) {
			require.NoError(t, err)
			imm, ok := msg.Imm()
			require.True(t, ok)
			require.Equal(t, next, imm)
			require.Equal(t, next, binary.BigEndian.Uint32(msg.Bytes()))
			require.Equal(t, 4, msg.Length())
			require.Equal(t, rdma.ReceivedSendImm, msg.Opcode())
			require.Same(t, i.peer, msg.Connection())
			next++
			if next%7 == 0 || next == total {
				break
			}
		}
	}
	require.NoError(t, <-sent)
}

func TestMessagesOfEveryKind(t *testing.T) {
	i := newReceiverRig(t, 2, 64)
	i.connect(t)
	copy(i.memA.Bytes(), "hello")
	go func() {
		_ = await.Task(background, i.engine, func() (*rdma.Task, error) {
			return i.plain.Send(i.conn, i.bufs.Source(i.memA, 0, 5))
		}, nil)
		_ = await.Task(background, i.engine, func() (*rdma.Task, error) {
			return i.writes.WriteImm(i.conn, i.bufs.Source(i.memA, 0, 5), i.bufs.Target(i.remote, 4096, 5), 7)
		}, nil)
	}()
	var got []string
	for msg, err := range i.rx.Messages(background) {
		require.NoError(t, err)
		imm, ok := msg.Imm()
		got = append(got, fmt.Sprintf("%v: %q, %d bytes, %d %v", msg.Opcode(), msg.Bytes(), msg.Length(), imm, ok))
		if len(got) == 2 {
			break
		}
	}
	require.Equal(t, []string{
		`send: "hello", 5 bytes, 0 false`,
		`write with immediate: "", 5 bytes, 7 true`,
	}, got)
	require.Equal(t, "hello", string(i.memB.Bytes()[4096:4101]))
}

// A message that is too long comes as an error in its place.
func TestMessagesWithAnError(t *testing.T) {
	i := newReceiverRig(t, 2, 2)
	i.connect(t)
	go func() { _ = i.send(1) }()
	for msg, err := range i.rx.Messages(background) {
		require.ErrorIs(t, err, rdma.ErrLocalLength)
		require.NotNil(t, msg)
		require.Empty(t, msg.Bytes())
		break
	}
	// The context has no connection left, and stops with the reason.
	var last error
	for _, err := range i.rx.Messages(background) {
		last = err
	}
	require.Error(t, last)
	require.NoError(t, await.State(background, i.b, pe.Idle))
}

func TestMessagesEnd(t *testing.T) {
	i := newReceiverRig(t, 4, 64)
	i.connect(t)

	// ctx ends an iteration; what has arrived stays.
	ctx, cancel := context.WithCancelCause(background)
	defer cancel(nil)
	require.NoError(t, i.send(1))
	require.NoError(t, i.send(2))
	var trace []string
	note := func(msg *await.Message, err error) {
		if msg == nil {
			trace = append(trace, err.Error())
			return
		}
		imm, _ := msg.Imm()
		trace = append(trace, fmt.Sprint(imm))
	}
	for msg, err := range i.rx.Messages(ctx) {
		note(msg, err)
		cancel(errBoom)
	}
	require.Equal(t, []string{"1", "await: receive messages: boom"}, trace)

	// One iteration at a time; not in a callback; no Close meanwhile.
	trace = nil
	for msg, err := range i.rx.Messages(background) {
		note(msg, err)
		for msg, err := range i.rx.Messages(background) {
			require.Nil(t, msg)
			require.ErrorIs(t, err, await.ErrBusy)
		}
		break
	}
	require.Equal(t, []string{"2"}, trace)
	do(t, i.engine, func() {
		for msg, err := range i.rx.Messages(background) {
			require.Nil(t, msg)
			require.ErrorIs(t, err, pe.ErrReentrant)
		}
	})

	// Stopping ends it after the messages that have arrived, and holds nothing up.
	require.NoError(t, i.send(3))
	require.NoError(t, i.send(4))
	eventually(t, i.engine, "both have arrived", func() bool { return i.b.Allocated() == 2 })
	require.NoError(t, await.Stop(background, i.a))
	require.NoError(t, await.Stop(background, i.b))
	trace = nil
	for msg, err := range i.rx.Messages(background) {
		require.ErrorIs(t, i.rx.Close(), await.ErrBusy)
		note(msg, err)
	}
	require.Equal(t, []string{"3", "4"}, trace)

	// Started again, it goes on.
	i.connect(t)
	require.NoError(t, i.send(5))
	for msg, err := range i.rx.Messages(background) {
		note(msg, err)
		break
	}
	require.Equal(t, []string{"3", "4", "5"}, trace)

	// A goroutine that waits gets the end. Messages left over go with Close.
	ended := make(chan int)
	go func() {
		n := 0
		for range i.rx.Messages(background) {
			n++
		}
		ended <- n
	}()
	require.NoError(t, await.Stop(background, i.b))
	require.Zero(t, <-ended)
	require.NoError(t, i.rx.Close())
	require.NoError(t, i.rx.Close())
	for msg, err := range i.rx.Messages(background) {
		require.Nil(t, msg)
		require.ErrorIs(t, err, await.ErrClosed)
	}
}

// A receiver that is closed while its context runs gives its buffers back when the
// context is Idle; deferred calls close it first.
func TestReceiverClosedBeforeItsContext(t *testing.T) {
	i := newReceiverRig(t, 4, 64)
	i.connect(t)
	require.NoError(t, i.send(1))
	require.NoError(t, i.rx.Close())
	require.NoError(t, i.send(2), "its receives stay posted")
	for msg, err := range i.rx.Messages(background) {
		require.Nil(t, msg)
		require.ErrorIs(t, err, await.ErrClosed)
	}
	require.NoError(t, await.Stop(background, i.b))
	require.NoError(t, i.rx.Close())
}

// A body that panics gives its message back too.
func TestMessagesBodyPanics(t *testing.T) {
	i := newReceiverRig(t, 1, 64)
	i.connect(t)
	for n := range uint32(3) {
		require.NoError(t, i.send(n))
		require.Panics(t, func() {
			for range i.rx.Messages(background) {
				panic("oops")
			}
		})
	}
}

func TestNewReceiverRefusals(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		ctx     rdma.Context
		n, size int
	}{{nil, 1, 1}, {r.b, 0, 1}, {r.b, math.MaxInt, 1}, {r.b, 1, 0}, {r.b, 2, math.MaxInt / 2}} {
		_, err := await.NewReceiver(c.ctx, c.n, c.size)
		require.ErrorIs(t, err, await.ErrInvalid)
	}
	require.NoError(t, r.b.Close())
	_, err := await.NewReceiver(r.b, 2, 64)
	require.ErrorIs(t, err, pe.ErrClosed)
}

// Without a loop: one message after the other, each valid until the next.
func TestReceiveOneByOne(t *testing.T) {
	i := newReceiverRig(t, 2, 64)
	i.connect(t)
	sent := make(chan error, 1)
	go func() {
		var err error
		for n := range uint32(20) {
			err = errors.Join(err, i.send(n))
		}
		sent <- err
	}()
	for n := range uint32(20) {
		msg, err := i.rx.Receive(background)
		require.NoError(t, err)
		require.Equal(t, n, binary.BigEndian.Uint32(msg.Bytes()))
	}
	require.NoError(t, <-sent)

	// Given up, nothing is lost.
	ctx, cancel := context.WithTimeoutCause(background, time.Millisecond, errTooLong)
	defer cancel()
	_, err := i.rx.Receive(ctx)
	require.ErrorIs(t, err, errTooLong)
	require.NoError(t, i.send(20))
	msg, err := i.rx.Receive(background)
	require.NoError(t, err)
	require.Equal(t, uint32(20), binary.BigEndian.Uint32(msg.Bytes()))

	// The end comes with its reason.
	do(t, i.engine, func() { i.b.Fail(errBoom) })
	require.NoError(t, await.Stop(background, i.b))
	_, err = i.rx.Receive(background)
	require.ErrorIs(t, err, errBoom)
	i.connectAgain(t)
	do(t, i.engine, func() { require.NoError(t, i.b.Stop()) })
	require.NoError(t, await.Stop(background, i.b))
	_, err = i.rx.Receive(background)
	require.ErrorIs(t, err, await.ErrStopped)
	do(t, i.engine, func() {
		_, err := i.rx.Receive(background)
		require.ErrorIs(t, err, pe.ErrReentrant)
	})
}

// connectAgain connects contexts that have stopped.
func (i *receiverRig) connectAgain(t *testing.T) {
	t.Helper()
	require.NoError(t, await.Stop(background, i.a))
	i.connect(t)
}

// A write that was given up keeps its buffers until the peer has it.
func TestWriteGivenUp(t *testing.T) {
	r := newRig(t)
	writes, err := r.a.Pool(1, pe.TaskDone, pe.TaskFailed)
	require.NoError(t, err)
	r.connect(t)
	const size = memorySize
	for try := 0; ; try++ {
		ctx, cancel := context.WithCancel(background)
		err := await.Task(ctx, r.engine, func() (*rdma.Task, error) {
			_ = r.engine.Do(cancel) // when it has been submitted
			return writes.Write(r.conn, r.bufs.Source(r.memA, 0, size), r.bufs.Target(r.remote, 0, size))
		}, nil)
		var pending *await.Pending
		if !errors.As(err, &pending) {
			require.Less(t, try, 1000, "never in flight")
			continue
		}
		do(t, r.engine, func() { // where it cannot end meanwhile
			if errors.Is(pending.Err(), await.ErrPending) {
				require.ErrorIs(t, r.remote.Close(), mmap.ErrInUse)
			}
		})
		require.NoError(t, pending.Wait(background))
		require.Equal(t, r.bufs.Total(), r.bufs.Available())
		return
	}
}

// The receiving context is stopped at any moment, again and again: what its device
// has acknowledged is delivered, in order, and nothing twice.
func TestMessagesAndStops(t *testing.T) {
	i := newReceiverRig(t, 3, 64)
	for round := range 20 {
		i.connect(t)
		sent := make(chan uint32, 1)
		go func() {
			n := uint32(0)
			for i.send(n) == nil {
				n++
			}
			sent <- n
		}()
		got := uint32(0)
		for msg, err := range i.rx.Messages(background) {
			if msg == nil {
				require.NoError(t, err)
			}
			imm, _ := msg.Imm()
			require.Equal(t, got, imm)
			got++
			if got == uint32(round) {
				require.NoError(t, i.engine.Do(func() { _ = i.b.Stop() }))
			}
			if round == 0 {
				break
			}
		}
		require.NoError(t, await.Stop(background, i.b))
		require.NoError(t, await.Stop(background, i.a))
		n := <-sent
		for msg, err := range i.rx.Messages(background) {
			require.NoError(t, err)
			imm, _ := msg.Imm()
			require.Equal(t, got, imm)
			got++
		}
		// The last one may have arrived although its sender never heard of it.
		require.GreaterOrEqual(t, got, n)
		require.LessOrEqual(t, got, n+1)
	}
}

var errTooLong = errors.New("too long")

// Whoever asks while the context is starting again waits for it, although it had
// stopped, or failed, before.
func TestMessagesBeforeItRunsAgain(t *testing.T) {
	for name, end := range map[string]func(i *receiverRig){
		"stopped": func(i *receiverRig) { _ = i.b.Stop() },
		"failed":  func(i *receiverRig) { i.b.Fail(errBoom) },
	} {
		t.Run(name, func(t *testing.T) {
			i := newReceiverRig(t, 2, 64)
			i.connect(t)
			do(t, i.engine, func() { end(i) })
			require.NoError(t, await.Stop(background, i.b))
			require.NoError(t, await.Stop(background, i.a))
			do(t, i.engine, func() { require.NoError(t, i.b.Start()) })
			ctx, cancel := context.WithTimeoutCause(background, 5*time.Millisecond, errTooLong)
			defer cancel()
			ends := 0
			for msg, err := range i.rx.Messages(ctx) {
				require.Nil(t, msg)
				require.ErrorIs(t, err, errTooLong)
				ends++
			}
			require.Equal(t, 1, ends, "it did not wait")

			// It goes back to Idle without having been Running.
			require.NoError(t, await.Stop(background, i.b))
			for msg, err := range i.rx.Messages(background) {
				require.Nil(t, msg)
				require.NoError(t, err)
			}
			i.connect(t)
			require.NoError(t, i.send(1))
			for _, err := range i.rx.Messages(background) {
				require.NoError(t, err)
				break
			}
		})
	}
}
