package crosscheck

import (
	"errors"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/pattern"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// ending is how the first connection of a workload ends.
type ending struct {
	name      string
	configure func(*rdma.Config)
	run       func(w *workload) error
}

var endings = []ending{
	{"nothing", nil, func(*workload) error { return nil }},
	{"wrong key", nil, wrongKey},
	{"out of bounds", nil, outOfBounds},
	{"not permitted", nil, notPermitted},
	{"message too long", nil, tooLong},
	{"no receive", func(c *rdma.Config) { c.RNRRetry, c.CloseTimeout = 2, rdma.None }, noReceive},
	{"flushed at close", func(c *rdma.Config) { c.CloseTimeout = rdma.None }, flushedAtClose},
	{"closed by the peer", nil, closedByPeer},
}

func wrongKey(w *workload) error {
	good := w.ends[0].remote
	bad, err := mmap.FromKey(w.ends[0].dev, good.Addr(), good.Len(), good.RKey()^0x00ff00, good.Permissions())
	if err != nil {
		return err
	}
	return w.refuse(bad, w.random.IntN(regionSize-4096)&^7, 0)
}

func outOfBounds(w *workload) error {
	good := w.ends[0].remote
	bad, err := mmap.FromKey(w.ends[0].dev, good.Addr(), good.Len()+regionSize, good.RKey(), good.Permissions())
	if err != nil {
		return err
	}
	off := good.Len() - 8 // the first bytes of a read or write are inside
	kind := w.random.IntN(3)
	if kind == 2 {
		off = good.Len()
	}
	return w.refuse(bad, off, kind)
}

// notPermitted uses memory that allows other operations.
func notPermitted(w *workload) (err error) {
	b := w.ends[1]
	kind := w.random.IntN(3)
	perm := []mmap.Permission{mmap.RemoteRead | mmap.RemoteAtomic, mmap.RemoteWrite | mmap.RemoteAtomic, mmap.RemoteRead | mmap.RemoteWrite}[kind]
	m, err := mmap.Alloc(b.dev, regionSize, mmap.LocalReadWrite|perm)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	pattern.Fill(m.Bytes(), 0, 0)
	before := checksum(m.Bytes())
	key, err := m.ExportKey(b.r.PD())
	if err != nil {
		return err
	}
	bad, err := mmap.FromKey(w.ends[0].dev, m.Addr(), m.Len(), key, mmap.RemoteRead|mmap.RemoteWrite|mmap.RemoteAtomic)
	if err != nil {
		return err
	}
	err = w.refuse(bad, 8*w.random.IntN(100), kind)
	if checksum(m.Bytes()) != before {
		err = errors.Join(err, errors.New("memory has changed although its owner did not permit it"))
	}
	return err
}

// refuse submits an operation that the peer refuses, after one that succeeds and before one that
// is flushed. The kinds are write, read and atomic.
func (w *workload) refuse(bad *mmap.Map, off, kind int) (err error) {
	defer func() { err = errors.Join(err, bad.Close()) }()
	return w.failAfter(func(b *batch) (*rdma.Task, error) {
		n := 100 + w.random.IntN(2000)
		switch kind {
		case 0:
			return b.e.tasks.Write(b.conn, b.data(n), bufinv.Target(bad, off, n))
		case 1:
			return b.e.tasks.Read(b.conn, bufinv.Source(bad, off, n), b.room(n))
		}
		return b.e.tasks.FetchAdd(b.conn, bufinv.Target(bad, off, 8), 1)
	})
}

func tooLong(w *workload) error {
	messages := w.messages()
	err := w.failAfter(func(b *batch) (*rdma.Task, error) {
		return b.e.tasks.Send(b.conn, b.data(messageSize+1+w.random.IntN(1000)))
	})
	return errors.Join(err, w.until("the receive has failed", func() bool { return w.messages() > messages }))
}

// failAfter submits a write, the operation that fails, and another write.
func (w *workload) failAfter(failing func(b *batch) (*rdma.Task, error)) error {
	a, b := w.ends[0], w.ends[1]
	batch := &batch{e: a, conn: a.conns[0]}
	batch.clear()
	write := func() (*rdma.Task, error) { return a.tasks.Write(batch.conn, batch.data(300), batch.write(300)) }
	for _, alloc := range []func() (*rdma.Task, error){write, func() (*rdma.Task, error) { return failing(batch) }, write} {
		if err := pe.SubmitOrFree(alloc()); err != nil {
			return err
		}
		a.inFlight++
	}
	err := w.until("the connection has failed", func() bool { return a.inFlight == 0 && a.conns[0].State() == rdma.Failed })
	a.noteConnection()
	if d := b.dev.Driver(); err != nil || d != "soft" && d != "sim" {
		return err
	}
	err = w.until("the peer's connection has failed", func() bool { return b.conns[0].State() == rdma.Failed })
	w.result.Refuser = describe(b.conns[0])
	return err
}

// overrun sends more messages than the peer has receives, and waits until no more than extra are
// under way.
func (w *workload) overrun(extra int) error {
	a, b := w.ends[0], w.ends[1]
	b.reposts = false
	batch := &batch{e: a, conn: a.conns[0]}
	batch.clear()
	for range b.posted + extra {
		if err := pe.SubmitOrFree(a.tasks.SendImm(batch.conn, batch.data(200), uint32(batch.source))); err != nil {
			return err
		}
		a.inFlight++
	}
	return w.until("the peer has no receives", func() bool { return b.posted == 0 && a.inFlight <= extra })
}

// noReceive lets the device give up.
func noReceive(w *workload) error {
	a := w.ends[0]
	if err := w.overrun(3); err != nil {
		return err
	}
	if err := w.until("the device gives up", func() bool { return a.inFlight == 0 && a.conns[0].State() == rdma.Failed }); err != nil {
		return err
	}
	return w.closeFirst(0, 1)
}

// flushedAtClose closes a connection with messages under way.
func flushedAtClose(w *workload) error {
	if err := w.overrun(3); err != nil {
		return err
	}
	return w.closeFirst(0, 1)
}

func closedByPeer(w *workload) error { return w.closeFirst(1) }

// closeFirst closes the first connection at some ends, and waits until it is closed at both.
func (w *workload) closeFirst(ends ...int) error {
	a, b := w.ends[0], w.ends[1]
	w.noteEnds()
	for _, i := range ends {
		if err := w.ends[i].conns[0].Close(); err != nil {
			return err
		}
	}
	err := w.until("the connection is closed", func() bool {
		return a.inFlight == 0 && a.conns[0].State() == rdma.Closed && b.conns[0].State() == rdma.Closed
	})
	w.noteEnds()
	if b.reposts {
		return err
	}
	b.reposts = true
	return errors.Join(err, b.post())
}

// noteEnds notes the state of the first connection.
func (w *workload) noteEnds() {
	for _, e := range w.ends {
		e.noteConnection()
	}
}

func (e *end) noteConnection() { e.note(e.w.result.Completions, 0, describe(e.conns[0])) }

// describe returns the state of a connection, and why it has ended.
func describe(c *rdma.Connection) string {
	text := c.State().String()
	for _, reason := range []error{
		rdma.ErrPeerClosed, rdma.ErrPeerRefused, rdma.ErrRemoteAccess, rdma.ErrRemoteInvalid, rdma.ErrRNRRetryExceeded, rdma.ErrLocalLength,
		rdma.ErrRetryExceeded, rdma.ErrTimeout,
	} {
		if errors.Is(c.Err(), reason) {
			text += ": " + reason.Error()
		}
	}
	return text
}
