package main

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/rdma"
)

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

// mover is a requester that moves data.
type mover struct {
	*end
	newTask func(pool *rdma.Pool, m move) (*rdma.Task, error)
	arrived func(t *rdma.Task) *bufinv.Buf // buffer with the data that the task received; nil: the data goes to the peer

	pool    *rdma.Pool
	remote  *mmap.Map
	each    []part          // of each connection's data
	streams []*stream       // by connection
	data    [][]*bufinv.Buf // by connection and part
	left    int             // tasks in flight
}

func moves(newTask func(*rdma.Pool, move) (*rdma.Task, error)) func(*end) role {
	return func(e *end) role { return &mover{end: e, newTask: newTask} }
}

func reads(e *end) role {
	return &mover{
		end:     e,
		newTask: func(p *rdma.Pool, m move) (*rdma.Task, error) { return p.Read(m.conn, m.remote, m.local) },
		arrived: (*rdma.Task).Destination,
	}
}

func (m *mover) open() (err error) {
	if m.local, err = m.alloc(mmap.LocalReadWrite); err != nil {
		return err
	}
	m.each = m.parts()
	m.streams = m.newStreams()
	if err := m.load(); err != nil {
		return err
	}
	m.pool, err = m.rdma.Pool(m.connections*len(m.each), m.done, m.failed)
	return err
}

// load makes the lists of all tasks, and fills those whose data goes to the peer. It runs
// before there is a connection, since it can take seconds.
func (m *mover) load() error {
	for i, stream := range m.streams {
		var lists []*bufinv.Buf
		for _, p := range m.each {
			list := scatter(&m.bufs, m.local, i*m.size+p.off, p.n, m.sge)
			lists = append(lists, list)
			if m.arrived != nil {
				continue
			}
			if err := load(list, stream); err != nil {
				return err
			}
		}
		m.data = append(m.data, lists)
	}
	return nil
}

// begin submits all tasks of all connections at once.
func (m *mover) begin(theirs *oob.Answer) (err error) {
	if m.operation.shares == memory {
		m.remote = theirs.Maps[0]
		if need, have := max(m.connections*m.size, 1), m.remote.Len(); have != need {
			return fmt.Errorf("the peer's memory has %d bytes, want %d: give both ends the same -size", have, need)
		}
	}
	var tasks []*rdma.Task
	for i := range m.conns {
		for k := range m.each {
			task, err := m.task(i, k)
			if err != nil {
				return errors.Join(err, rdma.FreeAll(tasks))
			}
			tasks = append(tasks, task)
		}
	}
	m.left, err = rdma.SubmitAll(tasks, 0)
	m.log.Info().Int("tasks", m.left).Msgf("%s submitted", m.operation.name)
	return errors.Join(err, rdma.FreeAll(tasks[m.left:]))
}

// task makes the task for a part of a connection's data.
func (m *mover) task(connection, number int) (*rdma.Task, error) {
	p := m.each[number]
	off := connection*m.size + p.off
	var remote *bufinv.Buf
	switch {
	case m.arrived != nil && p.n > 0:
		remote = m.bufs.Source(m.remote, off, p.n)
	case m.remote != nil && p.n > 0:
		remote = m.bufs.Target(m.remote, off, p.n)
	}
	return m.newTask(m.pool, move{m.conns[connection], m.data[connection][number], remote, immediate(connection, number)})
}

// done is called with each completed task, for each connection in the order of submission.
func (m *mover) done(t *rdma.Task) {
	if m.arrived != nil {
		m.rdma.Fail(unload(m.arrived(t), m.streams[index(t.Connection())]))
	}
	m.finish(t)
}

func (m *mover) failed(t *rdma.Task, err error) {
	m.rdma.Fail(err)
	m.finish(t)
}

// finish frees a task. After the last task it prints the data, and stops the context.
func (m *mover) finish(t *rdma.Task) {
	m.rdma.Fail(t.Free())
	if m.left--; m.left > 0 {
		return
	}
	if m.rdma.Err() == nil {
		for i, p := range m.streams {
			m.print("moved on connection %d: %v", i, p)
		}
	}
	m.rdma.Stop()
}
