package rdma_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

var sizes = []int{1, 7, 8, 1023, 1024, 4096, 4097, 65535, 1 << 20}

// pieces makes a list of up to four buffers of n bytes of a map, with gaps.
func pieces(inv func(off, n int) *bufinv.Buf, n, count int) *bufinv.Buf {
	var list []*bufinv.Buf
	off := 3
	for i := range count {
		part := n / (count - i)
		if part == 0 {
			continue
		}
		list = append(list, inv(off, part))
		off += part + 5
		n -= part
	}
	return bufinv.List(list...)
}

func (s *side) sourceList(n, count int) *bufinv.Buf {
	return pieces(func(off, n int) *bufinv.Buf { return s.bufs.Source(s.mem, off, n) }, n, count)
}

// target lists lie in the second half of the memory.
func (s *side) targetList(n, count int) *bufinv.Buf {
	return pieces(func(off, n int) *bufinv.Buf { return s.bufs.Target(s.mem, memorySize/2+off, n) }, n, count)
}

func TestSendAndReceive(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	var sends outcome[*rdma.Task]
	var imms outcome[*rdma.Task]
	var recvs outcome[*rdma.ReceiveTask]
	sendPool := must(r.a.ctx.Pool(4, sends.ok, sends.bad))
	immPool := must(r.a.ctx.Pool(4, imms.ok, imms.bad))
	recvPool := must(r.b.ctx.ReceivePool(4, recvs.ok, recvs.bad))
	r.connect(1)
	fill(r.a.mem.Bytes(), 1)

	for _, n := range append([]int{0}, sizes...) {
		for _, count := range []int{1, 3, 4} {
			t.Run(fmt.Sprintf("%d bytes in %d pieces", n, count), func(t *testing.T) {
				sends, imms, recvs = outcome[*rdma.Task]{}, outcome[*rdma.Task]{}, outcome[*rdma.ReceiveTask]{}
				for range 2 {
					recv, err := recvPool.Alloc(r.b.targetList(n+10, 5-count))
					require.NoError(t, err)
					require.NoError(t, recv.TrySubmit())
				}
				send, err := sendPool.Send(r.a.conns[0], r.a.sourceList(n, count))
				require.NoError(t, err)
				want := send.Source().AppendBytes(nil)
				require.Len(t, want, n)
				require.NoError(t, send.TrySubmit())
				r.until("the message has arrived", func() bool { return sends.count() == 1 && recvs.count() == 1 })
				require.Empty(t, append(sends.errs, recvs.errs...))
				got := recvs.done[0]
				assert.Equal(t, rdma.ReceivedSend, got.Opcode())
				assert.Equal(t, n, got.Length())
				assert.Equal(t, n, send.Bytes())
				assert.Same(t, r.b.conns[0], got.Connection())
				same(t, want, got.Destination().AppendBytes(nil))
				assert.Equal(t, n, got.Destination().ListDataLen())
				_, ok := got.Imm()
				assert.False(t, ok)

				imm, err := immPool.SendImm(r.a.conns[0], r.a.sourceList(n, count), 0xdeadbeef)
				require.NoError(t, err)
				require.NoError(t, imm.Submit())
				r.until("the message has arrived", func() bool { return imms.count() == 1 && recvs.count() == 2 })
				require.Empty(t, append(imms.errs, recvs.errs...))
				got = recvs.done[1]
				assert.Equal(t, rdma.ReceivedSendImm, got.Opcode())
				value, ok := got.Imm()
				assert.True(t, ok)
				assert.Equal(t, uint32(0xdeadbeef), value)
				same(t, want, got.Destination().AppendBytes(nil))

				require.NoError(t, send.Free())
				require.NoError(t, imm.Free())
				require.NoError(t, rdma.FreeAll(recvs.done))
			})
		}
	}
}

func TestReceiveAppends(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	var sends outcome[*rdma.Task]
	var recvs outcome[*rdma.ReceiveTask]
	sendPool := must(r.a.ctx.Pool(2, sends.ok, sends.bad))
	recvPool := must(r.b.ctx.ReceivePool(1, recvs.ok, recvs.bad))
	r.connect(1)
	copy(r.a.mem.Bytes(), "hello, world")

	recv, err := recvPool.Alloc(bufinv.List(r.b.bufs.Target(r.b.mem, 0, 7), r.b.bufs.Target(r.b.mem, 100, 20)))
	require.NoError(t, err)
	require.NoError(t, recv.SetAppend(true))
	for i, part := range [][2]int{{0, 5}, {5, 7}} {
		require.NoError(t, recv.TrySubmit())
		send, err := sendPool.Send(r.a.conns[0], r.a.bufs.Source(r.a.mem, part[0], part[1]))
		require.NoError(t, err)
		require.NoError(t, send.Submit())
		r.until("the part has arrived", func() bool { return len(recvs.done) == i+1 && len(sends.done) == i+1 })
	}
	assert.Equal(t, "hello, world", string(recv.Destination().AppendBytes(nil)))
	assert.Equal(t, "hello, ", string(r.b.mem.Bytes()[:7]))
	assert.Equal(t, "world", string(r.b.mem.Bytes()[100:105]))
	require.NoError(t, rdma.FreeAll(sends.done))
	require.NoError(t, recv.Free())
}

func TestWriteAndRead(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	var writes outcome[*rdma.Task]
	var imms outcome[*rdma.Task]
	var reads outcome[*rdma.Task]
	var recvs outcome[*rdma.ReceiveTask]
	writePool := must(r.a.ctx.Pool(1, writes.ok, writes.bad))
	immPool := must(r.a.ctx.Pool(1, imms.ok, imms.bad))
	readPool := must(r.a.ctx.Pool(1, reads.ok, reads.bad))
	recvPool := must(r.b.ctx.ReceivePool(1, recvs.ok, recvs.bad))
	r.connect(1)

	for i, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			fill(r.a.mem.Bytes(), byte(i))
			clear(r.b.mem.Bytes())
			writes, imms = outcome[*rdma.Task]{}, outcome[*rdma.Task]{}
			reads, recvs = outcome[*rdma.Task]{}, outcome[*rdma.ReceiveTask]{}

			write, err := writePool.Write(r.a.conns[0], r.a.sourceList(n, 4), r.a.bufs.Target(r.a.peer, 11, n))
			require.NoError(t, err)
			want := write.Source().AppendBytes(nil)
			require.NoError(t, write.TrySubmit())
			r.until("the write is done", func() bool { return writes.count() == 1 })
			require.Empty(t, writes.errs)
			same(t, want, r.b.mem.Bytes()[11:11+n])
			assert.Zero(t, r.b.mem.Bytes()[10])
			assert.Zero(t, r.b.mem.Bytes()[11+n])

			recv, err := recvPool.Alloc(nil)
			require.NoError(t, err)
			require.NoError(t, recv.Submit())
			imm, err := immPool.WriteImm(r.a.conns[0], r.a.sourceList(n, 2), r.a.bufs.Target(r.a.peer, memorySize/2, n), 42)
			require.NoError(t, err)
			require.NoError(t, imm.TrySubmit())
			r.until("both ends know of the write", func() bool { return imms.count() == 1 && recvs.count() == 1 })
			require.Empty(t, append(imms.errs, recvs.errs...))
			assert.Equal(t, rdma.ReceivedWriteImm, recv.Opcode())
			assert.Equal(t, n, recv.Length())
			value, ok := recv.Imm()
			assert.True(t, ok)
			assert.EqualValues(t, 42, value)
			same(t, imm.Source().AppendBytes(nil), r.b.mem.Bytes()[memorySize/2:][:n])

			read, err := readPool.Read(r.a.conns[0], r.a.bufs.Source(r.a.peer, 11, n), r.a.targetList(n+3, 3))
			require.NoError(t, err)
			for range 2 {
				require.NoError(t, read.TrySubmit())
				r.until("the read is done", func() bool { return reads.count() == 1 })
				require.Empty(t, reads.errs)
				assert.Equal(t, n, read.Bytes())
				same(t, want, read.Destination().AppendBytes(nil))
				reads = outcome[*rdma.Task]{}
			}
			require.NoError(t, write.Free())
			require.NoError(t, imm.Free())
			require.NoError(t, recv.Free())
			require.NoError(t, read.Free())
		})
	}

	t.Run("append", func(t *testing.T) {
		reads = outcome[*rdma.Task]{}
		copy(r.b.mem.Bytes(), "hello, world")
		read := must(readPool.Read(r.a.conns[0], r.a.bufs.Source(r.a.peer, 0, 5), r.a.bufs.Target(r.a.mem, 8, 12)))
		require.NoError(t, read.SetAppend(true))
		require.NoError(t, read.Submit())
		r.until("the first part is there", func() bool { return reads.count() == 1 })
		require.NoError(t, read.SetSource(r.a.bufs.Source(r.a.peer, 5, 7)))
		require.NoError(t, read.TrySubmit())
		require.ErrorIs(t, read.SetAppend(false), pe.ErrInUse)
		r.until("both parts are there", func() bool { return reads.count() == 2 })
		assert.Equal(t, "hello, world", string(read.Destination().Bytes()))
		require.ErrorIs(t, read.Submit(), rdma.ErrRange)
		assert.Equal(t, "hello, world", string(read.Destination().Bytes()), "it was not submitted")
		require.NoError(t, read.SetAppend(false))
		require.NoError(t, read.Submit())
		r.until("the second part is there again", func() bool { return reads.count() == 3 })
		assert.Equal(t, ", world", string(read.Destination().Bytes()))
		require.Empty(t, reads.errs)
		require.NoError(t, read.Free())
	})

	t.Run("no bytes", func(t *testing.T) {
		writes, imms, recvs = outcome[*rdma.Task]{}, outcome[*rdma.Task]{}, outcome[*rdma.ReceiveTask]{}
		reads = outcome[*rdma.Task]{}
		write := must(writePool.Write(r.a.conns[0], nil, nil))
		read := must(readPool.Read(r.a.conns[0], nil, nil))
		recv := must(recvPool.Alloc(nil))
		imm := must(immPool.WriteImm(r.a.conns[0], nil, nil, 7))
		require.NoError(t, recv.Submit())
		require.NoError(t, write.TrySubmit())
		require.NoError(t, imm.TrySubmit())
		require.NoError(t, read.TrySubmit())
		r.until("all is done", func() bool { return writes.count()+imms.count()+recvs.count()+reads.count() == 4 })
		assert.Empty(t, append(append(append(writes.errs, imms.errs...), recvs.errs...), reads.errs...))
		assert.Zero(t, recv.Length())
		assert.Zero(t, read.Bytes())
		require.NoError(t, read.Free())
		require.NoError(t, write.Free())
		require.NoError(t, recv.Free())
		require.NoError(t, imm.Free())
	})
}

func TestAtomics(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	var swaps outcome[*rdma.Task]
	var adds outcome[*rdma.Task]
	swapPool := must(r.a.ctx.Pool(2, swaps.ok, swaps.bad))
	addPool := must(r.a.ctx.Pool(2, adds.ok, adds.bad))
	r.connect(1)
	value := func() uint64 { return binary.NativeEndian.Uint64(r.b.mem.Bytes()[64:]) }
	binary.NativeEndian.PutUint64(r.b.mem.Bytes()[64:], 5)

	add, err := addPool.FetchAdd(r.a.conns[0], r.a.bufs.Target(r.a.peer, 64, 8), 37)
	require.NoError(t, err)
	require.NoError(t, add.SetResult(r.a.targetList(8, 3)))
	require.NoError(t, add.TrySubmit())
	r.until("the sum is there", func() bool { return adds.count() == 1 })
	require.Empty(t, adds.errs)
	assert.EqualValues(t, 5, add.Original())
	assert.EqualValues(t, 42, value())
	assert.EqualValues(t, 5, binary.NativeEndian.Uint64(add.Result().AppendBytes(nil)))

	swap, err := swapPool.CompareSwap(r.a.conns[0], r.a.bufs.Target(r.a.peer, 64, 8), 41, 1)
	require.NoError(t, err)
	require.NoError(t, swap.TrySubmit())
	r.until("the value was compared", func() bool { return swaps.count() == 1 })
	assert.EqualValues(t, 42, swap.Original(), "the value that differed")
	assert.EqualValues(t, 42, value())

	require.NoError(t, swap.SetValues(42, 1<<63))
	require.NoError(t, swap.Submit())
	r.until("the value was swapped", func() bool { return swaps.count() == 2 })
	require.Empty(t, swaps.errs)
	assert.EqualValues(t, 42, swap.Original())
	assert.EqualValues(t, uint64(1)<<63, value())

	require.NoError(t, add.SetValue(1<<63))
	require.NoError(t, add.SetAppend(true))
	require.ErrorIs(t, add.Submit(), rdma.ErrRange, "the result buffer is full")
	assert.Equal(t, 8, add.Result().ListDataLen())
	require.NoError(t, add.SetAppend(false))
	require.NoError(t, add.Submit())
	r.until("the sum wrapped", func() bool { return adds.count() == 2 })
	assert.Zero(t, value())
	assert.EqualValues(t, uint64(1)<<63, binary.NativeEndian.Uint64(add.Result().AppendBytes(nil)), "it was emptied")
	require.NoError(t, add.SetValue(7))
	require.NoError(t, add.SetResult(r.a.bufs.Target(r.a.mem, 0, 16)))
	require.NoError(t, add.SetAppend(true))
	for i := range 2 {
		require.NoError(t, add.TrySubmit())
		r.until("the sum is there", func() bool { return adds.count() == 3+i })
	}
	assert.EqualValues(t, 7, binary.NativeEndian.Uint64(add.Result().Bytes()[8:]), "it was appended")
	require.NoError(t, add.Free())
	require.NoError(t, swap.Free())
}

// An atomic write comes from a list of buffers or inline, goes to a word, and counts among the
// reads and atomics.
func TestAtomicWrite(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	var writes outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(32, writes.ok, writes.bad))
	r.connect(1)
	conn, a := r.a.conns[0], r.a
	fill(a.mem.Bytes(), 3)
	var tasks []*rdma.Task
	for i := range 2 * conn.MaxReadAtomic() {
		tasks = append(tasks, must(pool.AtomicWrite(conn, a.bufs.Source(a.mem, 8*i+3, 8), a.bufs.Target(a.peer, 8*i, 8))))
	}
	require.Less(t, len(tasks), 40)
	n, err := rdma.SubmitAll(tasks, 0)
	require.NoError(t, err)
	require.Equal(t, len(tasks), n)
	r.until("all are written", func() bool { return writes.count() == n })
	require.Empty(t, writes.errs)
	assert.Equal(t, tasks, writes.done)
	same(t, a.mem.Bytes()[3:3+8*n], r.b.mem.Bytes()[:8*n])
	assert.Equal(t, 8, tasks[0].Bytes())
	require.NoError(t, rdma.FreeAll(tasks))

	parts := must(pool.AtomicWrite(conn, a.sourceList(8, 3), a.bufs.Target(a.peer, 1024, 8)))
	assert.Equal(t, rdma.OpAtomicWrite, parts.Operation())
	want := parts.Source().AppendBytes(nil)
	require.NoError(t, parts.TrySubmit())
	r.until("it is written", func() bool { return writes.count() == n+1 })
	same(t, want, r.b.mem.Bytes()[1024:1032])
	require.NoError(t, parts.Free())

	for _, c := range []struct {
		src, dst *bufinv.Buf
		want     error
	}{
		{a.bufs.Source(a.mem, 0, 4), a.bufs.Target(a.peer, 0, 8), rdma.ErrInvalid},
		{a.bufs.Source(a.mem, 0, 16), a.bufs.Target(a.peer, 0, 16), rdma.ErrInvalid},
		{a.bufs.Source(a.mem, 0, 8), nil, rdma.ErrInvalid},
		{nil, a.bufs.Target(a.peer, 0, 8), rdma.ErrInvalid},
		{a.bufs.Source(a.mem, 0, 8), a.bufs.Target(a.peer, 0, 4), rdma.ErrRange},
		{a.bufs.Source(a.mem, 0, 8), a.bufs.Target(a.peer, 4, 8), rdma.ErrRange},
		{a.bufs.Source(a.mem, 0, 8), a.bufs.Target(a.mem, 0, 8), rdma.ErrInvalid},
	} {
		_, err := pool.AtomicWrite(conn, c.src, c.dst)
		require.ErrorIs(t, err, c.want)
	}
}

// Many tasks of all kinds on several connections at once; callbacks resubmit.
func TestManyConnections(t *testing.T) {
	const connections, rounds = 8, 50
	r := newRig(t, rdma.Config{MaxConnections: connections}, rdma.Config{MaxConnections: connections})
	var recvs outcome[*rdma.ReceiveTask]
	perConn := map[*rdma.Connection]int{}
	recvs.then = func(task *rdma.ReceiveTask) {
		perConn[task.Connection()]++
		require.NoError(t, task.Submit(pe.Aggregate))
	}
	recvPool := must(r.b.ctx.ReceivePool(32, recvs.ok, recvs.bad))
	var sends outcome[*rdma.Task]
	sends.then = func(task *rdma.Task) {
		left := task.UserData().(*int)
		if *left--; *left > 0 {
			require.NoError(t, task.Submit(pe.Aggregate|pe.OptimizeReports))
		}
	}
	sendPool := must(r.a.ctx.Pool(2*connections, sends.ok, sends.bad))
	r.connect(connections)
	assert.Len(t, r.a.ctx.List(), connections)
	var tasks []*rdma.ReceiveTask
	for i := range 32 {
		recv := must(recvPool.Alloc(r.b.bufs.Target(r.b.mem, i*128, 128)))
		tasks = append(tasks, recv)
	}
	n, err := rdma.SubmitAll(tasks, 0)
	require.NoError(t, err)
	require.Equal(t, 32, n)
	var sending []*rdma.Task
	for i := range 2 * connections {
		send := must(sendPool.Send(r.a.conns[i%connections], r.a.bufs.Source(r.a.mem, i*16, 100)))
		send.SetUserData(new(rounds))
		sending = append(sending, send)
	}
	n, err = rdma.SubmitAll(sending, pe.OptimizeReports)
	require.NoError(t, err)
	require.Equal(t, len(sending), n)
	r.until("everything was sent and received", func() bool {
		return sends.count() == 2*connections*rounds && recvs.count() == 2*connections*rounds
	})
	assert.Empty(t, append(sends.errs, recvs.errs...))
	for _, conn := range r.b.conns {
		assert.Equal(t, 2*rounds, perConn[conn], "%v", conn)
	}
	// The receives are still posted: stopping brings them back.
	recvs = outcome[*rdma.ReceiveTask]{}
	require.NoError(t, r.b.ctx.Stop())
	r.until("the receives came back", func() bool { return len(recvs.failed) == 32 })
	for _, err := range recvs.errs {
		assert.ErrorIs(t, err, rdma.ErrFlushed)
	}
	require.NoError(t, rdma.FreeAll(tasks))
	require.NoError(t, rdma.FreeAll(sending))
}
