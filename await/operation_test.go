package await_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
)

// All operations, from any goroutine, without a pool of the program's.
func TestOperations(t *testing.T) {
	r := newRig(t)
	rx, err := await.NewReceiver(r.b, 4, 64)
	require.NoError(t, err)
	defer func() { require.NoError(t, rx.Close()) }()
	r.connect(t)
	copy(r.memA.Bytes(), "hello, world")
	source := func(off, n int) *bufinv.Buf { return bufinv.Source(r.memA, off, n) }

	require.NoError(t, await.Write(background, r.conn, source(0, 5), bufinv.Target(r.remote, 4096, 5)))
	require.Equal(t, "hello", string(r.memB.Bytes()[4096:4101]))
	require.NoError(t, await.Read(background, r.conn, bufinv.Source(r.remote, 4096, 5),
		bufinv.List(bufinv.Target(r.memA, 100, 2), bufinv.Target(r.memA, 200, 8))))
	require.Equal(t, "he llo", string(r.memA.Bytes()[100:102])+" "+string(r.memA.Bytes()[200:203]))
	old, err := await.FetchAdd(background, r.conn, bufinv.Target(r.remote, 0, 8), 5)
	require.NoError(t, err)
	require.Zero(t, old)
	old, err = await.CompareSwap(background, r.conn, bufinv.Target(r.remote, 0, 8), 5, 9)
	require.NoError(t, err)
	require.EqualValues(t, 5, old)
	old, err = await.FetchAdd(background, r.conn, bufinv.Target(r.remote, 0, 8), 1)
	require.NoError(t, err)
	require.EqualValues(t, 9, old)
	require.NoError(t, await.AtomicWrite(background, r.conn, source(0, 8), bufinv.Target(r.remote, 16, 8)))
	require.Equal(t, "hello, w", string(r.memB.Bytes()[16:24]))

	require.NoError(t, await.Send(background, r.conn, source(7, 5)))
	require.NoError(t, await.SendImm(background, r.conn, nil, 7))
	require.NoError(t, await.WriteImm(background, r.conn, source(0, 1), bufinv.Target(r.remote, 8, 1), 8))
	for _, want := range []string{`send "world" 0`, `send with immediate "" 7`, `write with immediate "" 8`} {
		msg, err := rx.Receive(background)
		require.NoError(t, err)
		imm, _ := msg.Imm()
		require.Equal(t, want, fmt.Sprintf("%v %q %d", msg.Opcode(), msg.Bytes(), imm))
	}

	// Many more at a time than the pool has tasks.
	var wg sync.WaitGroup
	for i := range 4 * 64 {
		wg.Go(func() {
			for range 3 {
				assert.NoError(t, await.Write(background, r.conn, source(i, 1), bufinv.Target(r.remote, 8192+i, 1)))
			}
		})
	}
	wg.Wait()
	require.Equal(t, r.memA.Bytes()[:4*64], r.memB.Bytes()[8192:8192+4*64])
}

// The rest of a call is used again, except that the race detector empties a sync.Pool at random.
func TestTaskOfWriteAllocatesNothing(t *testing.T) {
	r := newRig(t)
	r.connect(t)
	src, dst := bufinv.Source(r.memA, 0, 8), bufinv.Target(r.remote, 0, 8)
	defer func() { require.NoError(t, errors.Join(src.Free(), dst.Free())) }()
	allocate := await.NewWriteTask(r.conn, src, dst)
	require.NoError(t, await.Func(background, r.engine, func() error {
		assert.Zero(t, testing.AllocsPerRun(1000, func() {
			task, err := allocate()
			require.NoError(t, err)
			require.NoError(t, task.Free())
		}))
		return nil
	}))
}

func TestOperationsRefused(t *testing.T) {
	r := newRig(t)
	require.ErrorIs(t, await.Send[*rdma.Connection](background, nil, nil), await.ErrInvalid)
	r.connect(t)
	require.ErrorIs(t, await.Write(background, r.conn, bufinv.Source(r.memA, 0, 8), bufinv.Target(r.remote, memorySize, 8)), bufinv.ErrRange)
	require.ErrorIs(t, await.Write(background, r.conn, bufinv.Source(r.memA, -1, 8), bufinv.Target(r.remote, 0, 8)), bufinv.ErrRange)
	require.ErrorIs(t, await.Write(background, r.conn, bufinv.Target(r.memA, 0, 8), bufinv.Target(r.remote, 0, 8)), rdma.ErrNoData)
	ended, cancel := context.WithCancelCause(background)
	cancel(errBoom)
	require.ErrorIs(t, await.Write(ended, r.conn, bufinv.Source(r.memA, 0, 8), bufinv.Target(r.remote, 0, 8)), errBoom)
	do(t, r.engine, func() {
		require.ErrorIs(t, await.Send(background, r.conn, bufinv.Source(r.memA, 0, 8)), pe.ErrReentrant)
	})
	// No reference was lost: the maps of the rig can be closed.
}

// Why a connection has ended reaches every caller, those that come later too.
func TestEveryCallerLearnsTheReason(t *testing.T) {
	for name, stays := range map[string]bool{"context stays": true, "context ends": false} {
		t.Run(name, func(t *testing.T) {
			r := newRigWith(t, rdma.Config{EndWithLastConnection: !stays, Permissions: everything}, rdma.Config{EndWithLastConnection: !stays})
			r.connect(t)
			const callers = 2 * 64
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					// The peer's context does not allow reads.
					err := await.Read(background, r.conn, bufinv.Source(r.remote, 0, 8), bufinv.Target(r.memA, 0, 8))
					assert.ErrorIs(t, err, rdma.ErrRemoteInvalid)
					assert.ErrorContains(t, err, "mmap.RemoteRead in its Config.Permissions")
				})
			}
			wg.Wait()
			if !stays {
				require.NoError(t, await.State(background, r.a, pe.Idle))
			}
			err := await.Send(background, r.conn, nil)
			require.ErrorIs(t, err, rdma.ErrRemoteInvalid, "later")
			if stays {
				require.ErrorIs(t, err, rdma.ErrNotReady)
			} else {
				require.ErrorIs(t, err, pe.ErrBadState)
			}
		})
	}
}

// What the program fails the context with reaches the callers too.
func TestEveryCallerLearnsOfFail(t *testing.T) { sim.Check(t, 3, testEveryCallerLearnsOfFail) }

func testEveryCallerLearnsOfFail(s *sim.Sim) {
	r := newRig(s)
	r.connect(s)
	ended := make(chan error, 1)
	spawn(s, func() { ended <- await.Send(background, r.conn, nil) }) // meets no receive
	eventually(s, r.engine, "it is in flight", func() bool { return r.a.InFlight() == 1 })
	do(s, r.engine, func() { r.a.Fail(errBoom) })
	err := <-ended
	require.ErrorIs(s, err, rdma.ErrFlushed)
	require.ErrorIs(s, err, errBoom)
	require.NoError(s, await.State(background, r.a, pe.Idle))
	require.ErrorIs(s, await.Send(background, r.conn, nil), errBoom)
	require.NoError(s, await.Stop(background, r.b))

	// Stopped by the program, there is no reason but that.
	r.connect(s)
	spawn(s, func() { ended <- await.Send(background, r.conn, nil) })
	eventually(s, r.engine, "it is in flight", func() bool { return r.a.InFlight() == 1 })
	require.NoError(s, await.Stop(background, r.a))
	err = <-ended
	require.ErrorIs(s, err, rdma.ErrFlushed)
	require.NotErrorIs(s, err, errBoom)
	require.ErrorContains(s, err, "this program closed the connection or stopped the context")
	var late *pe.StateError
	require.True(s, errors.As(await.Send(background, r.conn, nil), &late))
	require.NoError(s, late.Cause)
}
