package docs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

const (
	slots    = 8    // chunks that the consumer's memory has room for
	slotSize = 4096 // bytes of each
)

// producer writes chunks into the slots of a consumer, one after the other, round and round. It
// has a credit for each slot that may be overwritten.
type producer struct {
	end     *end // memory for as many slots of its own
	conn    *rdma.Connection
	remote  *mmap.Map // the consumer's slots
	writes  *rdma.WriteImmPool
	post    func() error
	fill    func(chunk int, slot []byte) (more bool)
	credits int
	next    int // chunk
	ended   bool
}

// prepare makes the tasks: as many writes as slots, and as many receives for credits.
func (p *producer) prepare() (err error) {
	p.credits = slots
	p.writes, err = p.end.rdma.WriteImmPool(slots,
		func(t *rdma.WriteImmTask) {
			_ = t.Free()
			p.push()
		},
		func(t *rdma.WriteImmTask, err error) {
			_ = t.Free()
			p.end.rdma.Fail(err)
		})
	if err != nil {
		return err
	}
	p.post, err = emptyReceives(p.end.rdma, slots, func(credits uint32) {
		p.credits += int(credits)
		p.push()
	})
	return err
}

// begin is called when the context is Running.
func (p *producer) begin() {
	p.end.rdma.Fail(p.post()) // nil does nothing
	p.push()
}

// push writes as long as there are credits. A task is free only when the write of this slot,
// slots chunks ago, has been acknowledged: writes complete in order. So the slot at this end may be
// filled again too.
func (p *producer) push() {
	for !p.ended && p.credits > 0 && p.writes.Available() > 0 {
		at := p.next % slots * slotSize
		if p.ended = !p.fill(p.next, p.end.memory.Bytes()[at:][:slotSize]); p.ended {
			return
		}
		t, err := p.writes.Alloc(p.conn, p.end.bufs.Source(p.end.memory, at, slotSize), p.end.bufs.Target(p.remote, at, slotSize), uint32(p.next))
		if err == nil {
			err = t.Submit()
		}
		if err != nil {
			p.end.rdma.Fail(err)
			return
		}
		p.credits--
		p.next++
	}
}

// consumer takes the chunks, and gives a credit back for each.
type consumer struct {
	end   *end // memory for the slots
	conn  *rdma.Connection
	sends *rdma.SendImmPool
	post  func() error
	take  func(chunk int, slot []byte)
	owed  uint32 // credits to be given back
}

// prepare makes the tasks: a receive for each slot, and one message that gives credits back.
func (c *consumer) prepare() (err error) {
	c.sends, err = c.end.rdma.SendImmPool(1,
		func(t *rdma.SendImmTask) {
			_ = t.Free()
			c.giveBack()
		},
		func(t *rdma.SendImmTask, err error) {
			_ = t.Free()
			c.end.rdma.Fail(err)
		})
	if err != nil {
		return err
	}
	c.post, err = emptyReceives(c.end.rdma, slots, func(chunk uint32) {
		at := int(chunk) % slots * slotSize
		c.take(int(chunk), c.end.memory.Bytes()[at:][:slotSize])
		c.owed++
		c.giveBack()
	})
	return err
}

// giveBack sends the credits that are owed, in one message without data. While one is under way
// they add up. The receive of the chunk has been posted again before.
func (c *consumer) giveBack() {
	if c.owed == 0 || c.sends.Available() == 0 || c.end.rdma.State() != pe.Running {
		return
	}
	t, err := c.sends.Alloc(c.conn, nil, c.owed)
	if err == nil {
		err = t.Submit()
	}
	c.end.rdma.Fail(err) // nil does nothing
	c.owed = 0
}

// emptyReceives makes n receives without buffers, which are posted again by themselves: a write
// with immediate leaves its data elsewhere, and a message of credits has none. It returns what
// posts them for the first time, in Running.
func emptyReceives(r *rdma.Context, n int, arrived func(imm uint32)) (post func() error, err error) {
	receives, err := r.ReceivePool(n,
		func(t *rdma.ReceiveTask) {
			imm, _ := t.Imm()
			if t.Submit() != nil {
				_ = t.Free() // the context is stopping
			}
			arrived(imm)
		},
		func(t *rdma.ReceiveTask, err error) { _ = t.Free() })
	return func() error {
		for range n {
			t, err := receives.Alloc(nil)
			if err != nil {
				return err
			}
			if err := t.Submit(); err != nil {
				return errors.Join(err, t.Free())
			}
		}
		return nil
	}, err
}

func Example_flowControl() {
	const chunks = 1000
	engine := pe.New(pe.Config{})
	cfg := rdma.Config{Engine: engine, EndWithLastConnection: true}
	here, there := newEnd("soft-lo", slots*slotSize, cfg), newEnd("soft-lo?loss=0.01&seed=1", slots*slotSize, cfg)
	remote := here.importFrom(there)
	p := &producer{end: here, remote: remote, fill: func(chunk int, slot []byte) bool {
		binary.LittleEndian.PutUint32(slot, uint32(chunk))
		binary.LittleEndian.PutUint32(slot[slotSize-4:], uint32(chunk))
		return chunk < chunks
	}}
	right := 0
	c := &consumer{end: there, take: func(chunk int, slot []byte) {
		if binary.LittleEndian.Uint32(slot) == uint32(chunk) && binary.LittleEndian.Uint32(slot[slotSize-4:]) == uint32(chunk) {
			right++
		}
		if chunk == chunks-1 {
			there.rdma.Fail(there.rdma.Stop())
		}
	}}
	check(errors.Join(p.prepare(), c.prepare()))
	p.conn, c.conn = connect(here.rdma, there.rdma)
	whenRunning := func(r *rdma.Context, begin func()) {
		r.OnStateChange(func(_, next pe.State) {
			if next == pe.Running {
				begin()
			}
		})
	}
	whenRunning(here.rdma, p.begin)
	whenRunning(there.rdma, func() { there.rdma.Fail(c.post()) })
	fmt.Println(engine.Run(context.Background()))
	fmt.Println(right, "chunks are right")
	check(errors.Join(here.rdma.Close(), there.rdma.Close(), remote.Close()))
	here.close()
	there.close()
	// Output:
	// <nil>
	// 1000 chunks are right
}
