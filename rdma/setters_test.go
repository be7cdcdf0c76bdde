package rdma_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/rdma"
)

// Every setter takes over the new buffer and lets go of the old; what was set is
// what is used.
func TestSetters(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	a := r.a
	sends := must(a.ctx.Pool(1, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	sendImms := must(a.ctx.Pool(1, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	reads := must(a.ctx.Pool(1, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	writes := must(a.ctx.Pool(1, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	writeImms := must(a.ctx.Pool(1, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	swaps := must(a.ctx.Pool(1, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	adds := must(a.ctx.Pool(1, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	recvs := must(a.ctx.ReceivePool(1, func(*rdma.ReceiveTask) {}, func(*rdma.ReceiveTask, error) {}))
	r.connect(1)
	conn := a.conns[0]
	here := func() *bufinv.Buf { return a.bufs.Source(a.mem, 0, 8) }
	room := func() *bufinv.Buf { return a.bufs.Target(a.mem, 0, 8) }
	there := func() *bufinv.Buf { return a.bufs.Target(a.peer, 0, 8) }
	data := func() *bufinv.Buf { return a.bufs.Source(a.peer, 0, 8) }

	send := must(sends.Send(conn, here()))
	sendImm := must(sendImms.SendImm(conn, here(), 1))
	read := must(reads.Read(conn, data(), room()))
	write := must(writes.Write(conn, here(), there()))
	writeImm := must(writeImms.WriteImm(conn, here(), there(), 1))
	swap := withResult(must(swaps.CompareSwap(conn, there(), 1, 2)), room())
	add := withResult(must(adds.FetchAdd(conn, there(), 1)), room())
	recv := must(recvs.Alloc(room()))
	out := a.bufs.Total() - a.bufs.Available()

	for _, c := range []struct {
		name string
		set  func(*bufinv.Buf) error
		get  func() *bufinv.Buf
		buf  *bufinv.Buf
	}{
		{"send source", send.SetSource, send.Source, here()},
		{"send with immediate source", sendImm.SetSource, sendImm.Source, here()},
		{"read source", read.SetSource, read.Source, data()},
		{"read destination", read.SetDestination, read.Destination, room()},
		{"write source", write.SetSource, write.Source, here()},
		{"write destination", write.SetDestination, write.Destination, there()},
		{"write with immediate source", writeImm.SetSource, writeImm.Source, here()},
		{"write with immediate destination", writeImm.SetDestination, writeImm.Destination, there()},
		{"compare-and-swap destination", swap.SetDestination, swap.Destination, there()},
		{"compare-and-swap result", swap.SetResult, swap.Result, room()},
		{"fetch-and-add destination", add.SetDestination, add.Destination, there()},
		{"fetch-and-add result", add.SetResult, add.Result, room()},
		{"receive destination", recv.SetDestination, recv.Destination, room()},
	} {
		t.Run(c.name, func(t *testing.T) {
			old := c.get()
			require.NoError(t, c.set(c.buf))
			assert.Same(t, c.buf, c.get())
			require.ErrorIs(t, old.Err(), bufinv.ErrFreed)
			require.NoError(t, c.set(c.buf), "the same one again")
			require.ErrorIs(t, c.set(a.bufs.Source(a.mem, 0, 0)), bufinv.ErrRange)
			assert.Same(t, c.buf, c.get())
			require.NoError(t, c.buf.Err())
		})
	}
	assert.Equal(t, out, a.bufs.Total()-a.bufs.Available())

	require.NoError(t, sendImm.SetImm(2))
	assert.EqualValues(t, 2, sendImm.Imm())
	require.NoError(t, writeImm.SetImm(3))
	assert.EqualValues(t, 3, writeImm.Imm())
	require.NoError(t, swap.SetValues(4, 5))
	compare, value := swap.Values()
	assert.Equal(t, []uint64{4, 5}, []uint64{compare, value})
	require.NoError(t, add.SetValue(6))
	assert.EqualValues(t, 6, add.Value())
	require.ErrorIs(t, send.SetConnection(nil), rdma.ErrInvalid)
	require.ErrorIs(t, send.SetConnection(r.b.conns[0]), rdma.ErrInvalid)

	tasks := []anyTask{recv, send, sendImm, read, write, writeImm, swap, add}
	kinds := []rdma.Operation{
		rdma.OpReceive, rdma.OpSend, rdma.OpSendImm, rdma.OpRead, rdma.OpWrite, rdma.OpWriteImm,
		rdma.OpCompareSwap, rdma.OpFetchAdd,
	}
	for i, task := range tasks {
		assert.Equal(t, kinds[i], task.Operation())
		task.SetUserData(i)
		assert.Equal(t, i, task.UserData())
		if i > 0 {
			assert.Same(t, conn, task.Connection())
		}
	}
	assert.Equal(t, 1, recvs.Cap())
	assert.Zero(t, recvs.Available())
	freeEach(t, tasks)
}
