package main

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/rdma"
)

// receiver is a responder that receives the parts of all connections at once. The connections
// share the receives.
type receiver struct {
	*end
	opcode   rdma.ReceiveOpcode
	pool     *rdma.ReceivePool
	each     []part
	streams  []*stream // by connection
	received []int     // by connection: parts received
	left     int       // receives in flight
}

func receives(opcode rdma.ReceiveOpcode) func(*end) role {
	return func(e *end) role { return &receiver{end: e, opcode: opcode} }
}

// written reports whether the data is written to exported memory, instead of received.
func (r *receiver) written() bool { return r.opcode == rdma.ReceivedWriteImm }

func (r *receiver) open() (err error) {
	r.each = r.parts()
	r.streams = r.newStreams()
	r.received = make([]int, r.connections)
	r.left = r.connections * len(r.each)
	if r.pool, err = r.rdma.ReceivePool(r.left, r.done, r.failed); err != nil {
		return err
	}
	if r.written() {
		r.memory, err = r.alloc(mmap.LocalReadWrite | mmap.RemoteWrite)
	} else {
		r.local, err = mmap.Alloc(r.dev, max(r.left*r.each[0].n, 1), mmap.LocalReadWrite)
	}
	return err
}

func (r *receiver) begin(*oob.Answer) error {
	var tasks []*rdma.ReceiveTask
	for i := range r.left {
		var room *bufinv.Buf
		if size := r.each[0].n; !r.written() { // any receive may get the longest part
			room = scatter(&r.bufs, r.local, i*size, size, r.sge)
		}
		task, err := r.pool.Alloc(room)
		if err != nil {
			return errors.Join(err, rdma.FreeAll(tasks))
		}
		tasks = append(tasks, task)
	}
	n, err := rdma.SubmitAll(tasks, 0)
	r.log.Info().Int("receives", n).Msg("receives submitted")
	return errors.Join(err, rdma.FreeAll(tasks[n:]))
}

func (r *receiver) done(t *rdma.ReceiveTask) {
	r.rdma.Fail(r.check(t))
	r.finish(t)
}

// check checks the data of a receive. The parts of a connection arrive in order.
func (r *receiver) check(t *rdma.ReceiveTask) error {
	i := index(t.Connection())
	number, p := r.received[i], r.streams[i]
	if r.received[i]++; number >= len(r.each) {
		return fmt.Errorf("connection %d received more than %d messages", i, len(r.each))
	}
	imm, has := t.Imm()
	switch want := r.each[number].n; {
	case t.Opcode() != r.opcode:
		return fmt.Errorf("expected a %v, received a %v", r.opcode, t.Opcode())
	case t.Length() != want:
		return fmt.Errorf("message %d of connection %d has %d bytes, want %d: give both ends the same -size", number, i, t.Length(), want)
	case has != (r.opcode != rdma.ReceivedSend):
		return fmt.Errorf("message %d of connection %d has an immediate value: %t", number, i, has)
	case has && imm != immediate(i, number):
		return fmt.Errorf("message %d of connection %d has the immediate value %#x, want %#x", number, i, imm, immediate(i, number))
	}
	var err error
	if r.written() {
		err = p.check(r.region(r.memory, i)[p.moved:][:t.Length()])
	} else {
		err = unload(t.Destination(), p)
	}
	if err == nil && r.received[i] == len(r.each) {
		r.print("moved on connection %d: %v", i, p)
	}
	return err
}

func (r *receiver) failed(t *rdma.ReceiveTask, err error) {
	r.rdma.Fail(err)
	r.finish(t)
}

func (r *receiver) finish(t *rdma.ReceiveTask) {
	r.rdma.Fail(t.Free())
	if r.left--; r.left == 0 && r.rdma.Err() == nil {
		r.endWithPeer(func() error { return nil })
	}
}
