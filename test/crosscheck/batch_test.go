package crosscheck

import (
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/pattern"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// batch is what one end submits on one connection in a phase.
type batch struct {
	e    *end
	conn *rdma.Connection
	// How much of the connection's regions is in use.
	there, source, target int
}

func (b *batch) clear() { b.there, b.source, b.target = words, 0, regionSize/2 }

// region is where the connection's part of each memory begins.
func (b *batch) region() int { return b.conn.UserData().(int) * regionSize }

// size draws the size of an operation: often at a limit of packets.
func (b *batch) size() int {
	random, mtu := b.e.w.random, int(b.conn.MTU())
	switch random.IntN(4) {
	case 0:
		return 0
	case 1:
		return 1 + random.IntN(64)
	case 2:
		return min(max(mtu*random.IntN(4)+random.IntN(3)-1, 1), 5<<10)
	}
	return 1 + random.IntN(5<<10)
}

// data returns n new bytes of local memory, as a list of one to three buffers. It is nil
// for none.
func (b *batch) data(n int) *bufinv.Buf {
	if n == 0 {
		return nil
	}
	random, off := b.e.w.random, b.region()+b.source
	b.source += n
	pattern.Fill(b.e.local.Bytes()[off:off+n], random.Uint64(), 0)
	return b.list(n, func(at, n int) *bufinv.Buf { return bufinv.Source(b.e.local, off+at, n) })
}

// room returns n bytes of local memory that nothing else uses in the phase.
func (b *batch) room(n int) *bufinv.Buf {
	if n == 0 {
		return nil
	}
	off := b.region() + b.target
	b.target += n
	return b.list(n, func(at, n int) *bufinv.Buf { return bufinv.Target(b.e.local, off+at, n) })
}

// list divides n bytes at random.
func (b *batch) list(n int, piece func(at, n int) *bufinv.Buf) *bufinv.Buf {
	var list []*bufinv.Buf
	for at := 0; at < n; {
		part := n - at
		if len(list) < 2 {
			part = 1 + b.e.w.random.IntN(part)
		}
		list = append(list, piece(at, part))
		at += part
	}
	return bufinv.List(list...)
}

// place returns the offset of n bytes of the peer's memory that nothing else uses in the phase.
func (b *batch) place(n int) int {
	off := b.region() + b.there
	b.there += n
	return off
}

// write returns n bytes of the peer's memory to write to.
func (b *batch) write(n int) *bufinv.Buf {
	if n == 0 {
		return nil
	}
	return bufinv.Target(b.e.remote, b.place(n), n)
}

// read returns n bytes of the peer's memory to read.
func (b *batch) read(n int) *bufinv.Buf {
	if n == 0 {
		return nil
	}
	return bufinv.Source(b.e.remote, b.place(n), n)
}

// submit submits a random operation, and reports whether the peer receives a message.
func (b *batch) submit() (message bool, err error) {
	random, pool, conn := b.e.w.random, b.e.tasks, b.conn
	n, imm := b.size(), random.Uint32()
	word := func() *bufinv.Buf { return bufinv.Target(b.e.remote, b.region()+8*random.IntN(words/8), 8) }
	atomic := false
	var t *rdma.Task
	switch rdma.Operation(random.IntN(int(rdma.OpSyncEventAdd))) + 1 {
	case rdma.OpSend, rdma.OpReceive:
		t, err = pool.Send(conn, b.data(n))
		message = true
	case rdma.OpSendImm:
		t, err = pool.SendImm(conn, b.data(n), imm)
		message = true
	case rdma.OpRead:
		t, err = pool.Read(conn, b.read(n), b.room(n))
	case rdma.OpWrite:
		t, err = pool.Write(conn, b.data(n), b.write(n))
	case rdma.OpWriteImm:
		t, err = pool.WriteImm(conn, b.data(n), b.write(n), imm)
		message = true
	case rdma.OpCompareSwap:
		t, err = pool.CompareSwap(conn, word(), uint64(imm%2), uint64(random.Uint32()%2))
		atomic = true
	case rdma.OpFetchAdd:
		t, err = pool.FetchAdd(conn, word(), uint64(imm)<<random.IntN(33))
		atomic = true
	case rdma.OpSyncEventAdd:
		t, err = pool.SyncEventAdd(conn, b.e.theirs, 1)
	default: // the value of an event that all connections share says nothing
		t, err = pool.Write(conn, b.data(n), b.write(n))
	}
	if err == nil && atomic && random.IntN(2) == 0 {
		err = t.SetResult(b.room(8))
	}
	if err = pe.SubmitOrFree(t, err); err != nil {
		return false, fmt.Errorf("submit a %v: %w", t, err)
	}
	b.e.inFlight++
	return message, nil
}
