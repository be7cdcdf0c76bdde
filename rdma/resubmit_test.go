package rdma_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// A task that is submitted again does what its buffers say now, however they were changed
// meanwhile: by the task's setters, or through the buffers themselves.
func TestSubmittedAgain(t *testing.T) {
	var outcomes outcome[*rdma.Task]
	r := newRig(t, rdma.Config{}, rdma.Config{})
	pool, err := r.a.ctx.Pool(2, outcomes.ok, outcomes.bad)
	require.NoError(t, err)
	r.connect(1)
	fill(r.a.mem.Bytes(), byte(rand.Uint32()))
	// The local memory is the first half of a's, the room that is written to or read from is the
	// first half of b's.
	const half = memorySize / 2
	source := func() *bufinv.Buf { return r.a.bufs.Source(r.a.mem, 0, 64) }
	target := func() *bufinv.Buf { return r.a.bufs.Target(r.a.peer, 0, 256) }

	rapid.Check(t, func(t *rapid.T) {
		outcomes = outcome[*rdma.Task]{}
		write := must(pool.Write(r.a.conns[0], source(), target()))
		read := must(pool.Read(r.a.conns[0], r.a.bufs.Source(r.a.peer, 0, 64), r.a.bufs.Target(r.a.mem, half, 256)))
		defer func() { // after a failure too: the context ends only without them
			require.NoError(t, write.Free())
			require.NoError(t, read.Free())
		}()
		buffers := map[string]func() *bufinv.Buf{
			"source of the write": write.Source, "destination of the write": write.Destination,
			"source of the read": read.Source, "destination of the read": read.Destination,
		}
		appends := false
		names := []string{"source of the write", "destination of the write", "source of the read", "destination of the read"}
		submit := func(task *rdma.Task, thorough bool) bool {
			before := outcomes.count()
			var err error
			if thorough {
				err = task.TrySubmit()
			} else {
				err = task.Submit()
			}
			if err != nil {
				require.False(t, task.InFlight())
				return false
			}
			r.until("the task completes", func() bool { return outcomes.count() > before })
			require.Empty(t, outcomes.errs)
			return true
		}
		t.Repeat(map[string]func(*rapid.T){
			"data": func(t *rapid.T) {
				b := buffers[rapid.SampledFrom(names).Draw(t, "buffer")]()
				require.NoError(t, b.SetData(rapid.IntRange(0, b.Len()/4).Draw(t, "offset"), rapid.IntRange(0, b.Len()/4).Draw(t, "length")))
			},
			"empty": func(t *rapid.T) {
				require.NoError(t, buffers[rapid.SampledFrom(names).Draw(t, "buffer")]().Empty())
			},
			"chain": func(t *rapid.T) {
				if b := write.Source(); b.Next() == nil {
					require.NoError(t, b.Chain(r.a.bufs.Source(r.a.mem, 512, 32)))
				}
			},
			"unchain": func(t *rapid.T) {
				if next := write.Source().Next(); next != nil {
					require.NoError(t, next.Unchain())
					require.NoError(t, next.Free())
				}
			},
			"other source of the read": func(t *rapid.T) {
				require.NoError(t, read.SetSource(r.a.bufs.Source(r.a.peer, rapid.IntRange(0, 100).Draw(t, "offset"), 50)))
			},
			"other destination of the write": func(t *rapid.T) {
				require.NoError(t, write.SetDestination(r.a.bufs.Target(r.a.peer, rapid.IntRange(0, 100).Draw(t, "offset"), 128)))
			},
			"bytes appended": func(t *rapid.T) {
				if b := read.Destination(); b.Room() > 3 {
					require.NoError(t, b.Append([]byte("abc")))
				}
			},
			"other source": func(t *rapid.T) {
				require.NoError(t, write.SetSource(r.a.bufs.Source(r.a.mem, rapid.IntRange(0, 100).Draw(t, "offset"), 40)))
			},
			"other destination": func(t *rapid.T) {
				require.NoError(t, read.SetDestination(r.a.bufs.Target(r.a.mem, half+rapid.IntRange(0, 100).Draw(t, "offset"), 256)))
			},
			"append": func(t *rapid.T) {
				appends = rapid.Bool().Draw(t, "on")
				require.NoError(t, read.SetAppend(appends))
			},
			"write": func(t *rapid.T) {
				want := write.Source().AppendBytes(nil)
				at := write.Destination().TailAddr() - r.a.peer.Addr()
				room := write.Destination().Room()
				clear(r.b.mem.Bytes()[:half])
				ok := submit(write, rapid.Bool().Draw(t, "thorough"))
				require.Equal(t, len(want) > 0 && len(want) <= room, ok)
				if ok {
					require.Equal(t, want, r.b.mem.Bytes()[at:at+uint64(len(want))])
					require.Equal(t, len(want), write.Bytes())
				}
			},
			"read": func(t *rapid.T) {
				fill(r.b.mem.Bytes()[:half], byte(rand.Uint32()))
				at, n := read.Source().DataAddr()-r.a.peer.Addr(), read.Source().DataLen()
				dst := read.Destination()
				var want []byte
				room := dst.Len() - int(dst.DataAddr()-dst.Addr())
				if appends {
					want, room = dst.AppendBytes(nil), dst.Room()
				}
				want = append(want, r.b.mem.Bytes()[at:at+uint64(n)]...)
				ok := submit(read, rapid.Bool().Draw(t, "thorough"))
				require.Equal(t, n > 0 && n <= room, ok)
				if ok {
					require.Equal(t, want, dst.Bytes())
					require.Equal(t, n, read.Bytes())
				}
			},
		})
	})
	require.Equal(t, pe.Running, r.a.ctx.State())
}

// An atomic, an operation on a sync event and a receive that are submitted again take what was set
// meanwhile, and put their results where they belong.
func TestWordsAndReceivesAgain(t *testing.T) {
	var outcomes outcome[*rdma.Task]
	var received outcome[*rdma.ReceiveTask]
	r := newRig(t, rdma.Config{}, rdma.Config{})
	pool := must(r.a.ctx.Pool(2, outcomes.ok, outcomes.bad))
	receives := must(r.b.ctx.ReceivePool(1, received.ok, received.bad))
	r.connect(1)
	again := func(task *rdma.Task) {
		t.Helper()
		before := outcomes.count()
		require.NoError(t, task.Submit())
		r.until("it completes", func() bool { return outcomes.count() > before })
		require.Empty(t, outcomes.errs)
	}

	add := must(pool.FetchAdd(r.a.conns[0], r.a.bufs.Target(r.a.peer, 0, 8), 1))
	clear(r.b.mem.Bytes()[:16])
	result := r.a.bufs.Target(r.a.mem, 0, 64)
	require.NoError(t, add.SetResult(result))
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(result.Bytes()[8*i:]) }
	again(add)
	again(add)
	require.Equal(t, 8, result.DataLen())
	require.Equal(t, uint64(1), word(0))
	require.NoError(t, add.SetValue(40))
	again(add)
	require.Equal(t, uint64(2), word(0))
	require.NoError(t, add.SetAppend(true))
	again(add)
	again(add)
	require.Equal(t, 24, result.DataLen())
	require.Equal(t, []uint64{2, 42, 82}, []uint64{word(0), word(1), word(2)})
	require.NoError(t, add.SetDestination(r.a.bufs.Target(r.a.peer, 8, 8)))
	again(add)
	require.Zero(t, add.Original())
	require.NoError(t, add.Free())

	send := must(pool.SendImm(r.a.conns[0], r.a.bufs.Source(r.a.mem, 64, 8), 1))
	dst := r.b.bufs.Target(r.b.mem, 256, 32)
	recv := must(receives.Alloc(dst))
	for i, text := range []string{"message1", "message2", "message3", "message4"} {
		appends := i >= 2
		require.NoError(t, recv.SetAppend(appends))
		if i == 3 {
			require.NoError(t, dst.SetData(4, 4))
		}
		require.NoError(t, recv.Submit())
		copy(r.a.mem.Bytes()[64:], text)
		require.NoError(t, send.SetImm(uint32(i)))
		again(send)
		r.until("it arrives", func() bool { return received.count() == i+1 })
		imm, _ := recv.Imm()
		require.Equal(t, uint32(i), imm)
		want := text
		switch i {
		case 2:
			want = "message2" + text
		case 3:
			want = "age2" + text
		}
		require.Equal(t, want, string(dst.Bytes()))
	}
	require.NoError(t, send.Free())
	require.NoError(t, recv.Free())
}
