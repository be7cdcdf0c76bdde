package main

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// messageLimit is the greatest size of a task that consumes a receive, in bytes. Both ends
// have to divide the data in the same way, and the kernel's rxe has no longer messages.
const messageLimit = 8 << 20

// part is the data of one task: n bytes of a connection's data at off.
type part struct{ off, n int }

// parts divides the data of a connection into a part for each task. Empty data is one part,
// since a message may be empty.
func (e *end) parts() []part {
	limit := int(e.rdma.Capabilities().MaxMessage)
	if e.operation.shape == messages {
		limit = min(limit, messageLimit)
	}
	parts := divide(e.size, limit)
	if len(parts) > 1 {
		e.log.Info().Msgf("%d bytes are more than the %d of one task: there are %d tasks", e.size, limit, len(parts))
	}
	return parts
}

func divide(size, limit int) []part {
	parts := []part{{0, min(size, limit)}}
	for off := limit; off < size; off += limit {
		parts = append(parts, part{off, min(size-off, limit)})
	}
	return parts
}

// region returns the memory for the data of a connection, within that for all of them.
func (e *end) region(m *mmap.Map, connection int) []byte {
	return m.Bytes()[connection*e.size:][:e.size]
}

// alloc allocates memory for the data of all connections.
func (e *end) alloc(perm mmap.Permission) (*mmap.Map, error) {
	return mmap.Alloc(e.dev, max(e.connections*e.size, 1), perm)
}

// scatter divides n bytes of memory at off into up to count buffers. Their order is reversed in
// memory, so that a list of them is not contiguous.
func scatter(off, n, count int) []part {
	count = min(count, n)
	list := make([]part, count)
	end := off + n
	for i := range list {
		size := n*(i+1)/count - n*i/count
		end -= size
		list[i] = part{end, size}
	}
	return list
}

// list makes a list of buffers of local memory; nil for none.
func (e *end) list(buffers []part, newBuf func(m *mmap.Map, off, n int) *bufinv.Buf) *bufinv.Buf {
	var list []*bufinv.Buf
	for _, b := range buffers {
		list = append(list, newBuf(e.local, b.off, b.n))
	}
	return bufinv.List(list...)
}

// move has the parameters of a task.
type move struct {
	conn          *rdma.Connection
	local, remote *bufinv.Buf // remote is nil where the operation names no memory of the peer
	imm           uint32
}

// immediate returns the immediate value for a part.
func immediate(connection, part int) uint32 {
	return 0xd0ca0000 | uint32(connection)<<12 | uint32(part)
}

// moves makes a requester whose data goes to the peer.
func moves(newTask func(*rdma.Pool, move) (*rdma.Task, error)) work {
	return func(ctx context.Context, e *end) error { return e.move(ctx, false, newTask) }
}

// reads is a requester that reads the peer's memory.
func reads(ctx context.Context, e *end) error {
	return e.move(ctx, true, func(p *rdma.Pool, m move) (*rdma.Task, error) { return p.Read(m.conn, m.remote, m.local) })
}

// move submits all tasks of all connections at once.
func (e *end) move(ctx context.Context, read bool, newTask func(*rdma.Pool, move) (*rdma.Task, error)) (err error) {
	if e.local, err = e.alloc(mmap.LocalReadWrite); err != nil {
		return err
	}
	each, streams := e.parts(), e.newStreams()
	pool, err := e.rdma.Pool(e.connections*len(each), pe.TaskDone, pe.TaskFailed)
	if err != nil {
		return err
	}
	localBuf, remoteBuf := e.bufs.Source, e.bufs.Target
	if read {
		localBuf, remoteBuf = remoteBuf, localBuf
	}
	// data visits the buffers of all parts, in the order of the data.
	data := func(visit func(s *stream, b []byte) error) error {
		for i, s := range streams {
			for _, p := range each {
				for _, b := range scatter(i*e.size+p.off, p.n, e.sge) {
					if err := visit(s, e.local.Bytes()[b.off:][:b.n]); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	if !read { // before there is a connection, since it can take seconds
		_ = data(func(s *stream, b []byte) error { s.fill(b); return nil })
	}
	if _, err := e.connect(ctx); err != nil {
		return err
	}
	var remote *mmap.Map
	if e.operation.shares == memory {
		remote = e.theirs.Maps[0]
		if need, have := max(e.connections*e.size, 1), remote.Len(); have != need {
			return fmt.Errorf("the peer's memory has %d bytes, want %d: give both ends the same -size", have, need)
		}
	}
	var tasks []*await.Pending
	for i, conn := range e.conns {
		for k, p := range each {
			task, err := await.Post(e.engine, func() (*rdma.Task, error) {
				off := i*e.size + p.off
				m := move{conn: conn, local: e.list(scatter(off, p.n, e.sge), localBuf), imm: immediate(i, k)}
				if remote != nil && p.n > 0 {
					m.remote = remoteBuf(remote, off, p.n)
				}
				return newTask(pool, m)
			})
			if err != nil {
				return err
			}
			tasks = append(tasks, task)
		}
	}
	e.log.Info().Int("tasks", len(tasks)).Msgf("%s submitted", e.operation.name)
	for _, task := range tasks {
		if err := task.Wait(ctx); err != nil {
			return err
		}
	}
	if read {
		if err := data((*stream).check); err != nil {
			return err
		}
	}
	e.printMoved(streams)
	return e.finish(ctx)
}

func (e *end) printMoved(streams []*stream) {
	for i, s := range streams {
		e.print("moved on connection %d: %v", i, s)
	}
}

// receives makes a responder that receives the parts of all connections at once. The connections
// share the receives.
func receives(opcode rdma.ReceiveOpcode) work {
	return func(ctx context.Context, e *end) (err error) {
		each, streams := e.parts(), e.newStreams()
		written := opcode == rdma.ReceivedWriteImm // to exported memory, instead of received
		n, size := e.connections*len(each), each[0].n
		pool, err := e.rdma.ReceivePool(n, pe.TaskDone, pe.TaskFailed)
		if err != nil {
			return err
		}
		if written {
			e.memory, err = e.alloc(mmap.LocalReadWrite | mmap.RemoteWrite)
		} else { // any receive may get the longest part
			e.local, err = mmap.Alloc(e.dev, max(n*size, 1), mmap.LocalReadWrite)
		}
		if err != nil {
			return err
		}
		if _, err := e.connect(ctx); err != nil {
			return err
		}
		received := make([]int, e.connections) // parts
		check := func(t *rdma.ReceiveTask) error {
			i := t.Connection().UserData().(int)
			number, s := received[i], streams[i]
			if received[i]++; number >= len(each) {
				return fmt.Errorf("connection %d received more than %d messages", i, len(each))
			}
			imm, has := t.Imm()
			switch want := each[number].n; {
			case t.Opcode() != opcode:
				return fmt.Errorf("expected a %v, received a %v", opcode, t.Opcode())
			case t.Length() != want:
				return fmt.Errorf("message %d of connection %d has %d bytes, want %d: give both ends the same -size", number, i, t.Length(), want)
			case has != (opcode != rdma.ReceivedSend):
				return fmt.Errorf("message %d of connection %d has an immediate value: %t", number, i, has)
			case has && imm != immediate(i, number):
				return fmt.Errorf("message %d of connection %d has the immediate value %#x, want %#x", number, i, imm, immediate(i, number))
			case written:
				return s.check(e.region(e.memory, i)[s.moved:][:t.Length()])
			}
			for b := t.Destination(); b != nil; b = b.Next() {
				if err := s.check(b.Bytes()); err != nil {
					return err
				}
			}
			return nil
		}
		ends := make(chan error, n)
		for i := range n {
			go func() {
				ends <- await.Task(ctx, e.engine, func() (*rdma.ReceiveTask, error) {
					if written {
						return pool.Alloc(nil)
					}
					return pool.Alloc(e.list(scatter(i*size, size, e.sge), e.bufs.Target))
				}, check)
			}()
		}
		for range n {
			if err := <-ends; err != nil {
				return err
			}
		}
		e.printMoved(streams)
		return e.finish(ctx)
	}
}

// provides is a responder whose memory is read.
func provides(ctx context.Context, e *end) error { return e.share(ctx, mmap.RemoteRead) }

// takes is a responder whose memory is written.
func takes(ctx context.Context, e *end) error { return e.share(ctx, mmap.RemoteWrite) }

// share submits nothing: the peer reads or writes memory. RDMA does not report when the peer has
// finished: its program does.
func (e *end) share(ctx context.Context, perm mmap.Permission) (err error) {
	if e.memory, err = e.alloc(mmap.LocalReadWrite | perm); err != nil {
		return err
	}
	streams := e.newStreams()
	if perm == mmap.RemoteRead {
		for i, s := range streams {
			s.fill(e.region(e.memory, i))
		}
	}
	if _, err := e.connect(ctx); err != nil {
		return err
	}
	if err := e.finish(ctx); err != nil {
		return err
	}
	if perm == mmap.RemoteWrite {
		for i, s := range streams {
			if err := s.check(e.region(e.memory, i)); err != nil {
				return err
			}
		}
	}
	e.printMoved(streams)
	return nil
}
