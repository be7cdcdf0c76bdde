package main

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/rdma"
)

// Values for atomics.
const (
	firstValue = 1 // the responder's value at the beginning
	swapped    = 0xd0ca
	addend     = 5
)

// changer is a requester that changes the responder's value with atomics, one after the other.
type changer struct {
	*end
	newTask func(pool *rdma.Pool, conn *rdma.Connection, dst *bufinv.Buf) (*rdma.Task, error)
	next    func(v uint64) uint64 // the atomic's effect on a value

	pool   *rdma.Pool
	remote *mmap.Map
	value  uint64 // expected by the next atomic
	left   int
}

func changes(times int, next func(uint64) uint64, newTask func(*rdma.Pool, *rdma.Connection, *bufinv.Buf) (*rdma.Task, error)) func(*end) role {
	return func(e *end) role {
		return &changer{end: e, newTask: newTask, next: next, value: firstValue, left: times}
	}
}

func (c *changer) open() (err error) {
	if c.local, err = mmap.Alloc(c.dev, 8, mmap.LocalReadWrite); err != nil {
		return err
	}
	c.pool, err = c.rdma.Pool(1, c.done, c.failed)
	return err
}

func (c *changer) begin(theirs *oob.Answer) error {
	c.remote = theirs.Maps[0]
	return c.submit()
}

func (c *changer) submit() error {
	task, err := c.newTask(c.pool, c.conns[0], c.bufs.Target(c.remote, 0, 8))
	if err != nil {
		return err
	}
	if err = task.SetResult(c.bufs.Target(c.local, 0, 8)); err == nil {
		err = task.Submit()
	}
	if err != nil {
		c.rdma.Fail(task.Free())
		return err
	}
	return nil
}

func (c *changer) done(t *rdma.Task) {
	err := c.check(t)
	c.value = c.next(c.value)
	c.rdma.Fail(t.Free())
	if c.left--; c.left > 0 && err == nil {
		err = c.submit()
	} else if err == nil {
		c.print("left: %s", word(c.value))
		c.rdma.Stop()
	}
	c.rdma.Fail(err)
}

func (c *changer) check(t *rdma.Task) error {
	result := t.Result().Bytes()
	if t.Original() != c.value || len(result) != 8 || binary.NativeEndian.Uint64(result) != c.value {
		return fmt.Errorf("found %d, in the buffer %x, want %d", t.Original(), result, c.value)
	}
	return nil
}

// holder is the responder for atomics: its device operates on its value.
type holder struct {
	*end
	value *uint64 // in memory
}

func holds(e *end) role { return &holder{end: e} }

func (h *holder) open() (err error) {
	if h.memory, err = mmap.Alloc(h.dev, 8, mmap.LocalReadWrite|mmap.RemoteAtomic); err != nil {
		return err
	}
	h.value = (*uint64)(unsafe.Pointer(unsafe.SliceData(h.memory.Bytes())))
	atomic.StoreUint64(h.value, firstValue)
	return nil
}

func (h *holder) begin(*oob.Answer) error {
	h.endWithPeer(func() error {
		h.print("left: %s", word(atomic.LoadUint64(h.value)))
		return nil
	})
	return nil
}
