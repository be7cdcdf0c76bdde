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

// producer writes chunks into the slots of a consumer, in turn. Its counters count chunks.
type producer struct {
	end     *end // its memory has as many slots
	conn    *rdma.Connection
	remote  *mmap.Map // the consumer's slots
	writes  *rdma.Pool
	fill    func(chunk int, slot []byte) (more bool)
	sent    int
	written int // acknowledged by the consumer's device
	taken   int // by the consumer's program
	ended   bool
}

// prepare makes as many writes as slots, and takes the consumer's credits.
func (p *producer) prepare() (err error) {
	if p.writes, err = p.end.rdma.Pool(slots, pe.TaskDone, pe.TaskFailed); err != nil {
		return err
	}
	return p.end.rdma.Receive(1, 0, func(m *rdma.Message) {
		taken, _ := m.Imm()
		p.taken = int(taken)
		p.push()
	})
}

// push writes while there are free slots. A slot of the consumer is free when its chunk has
// been taken; a slot of this end, and its task, when the write has completed. The first call
// is made when the context is Running.
func (p *producer) push() {
	for !p.ended && p.sent < min(p.taken, p.written)+slots {
		at := p.sent % slots * slotSize
		if p.ended = !p.fill(p.sent, p.end.memory.Bytes()[at:][:slotSize]); p.ended {
			return
		}
		task, err := p.writes.WriteImm(p.conn, p.end.bufs.Source(p.end.memory, at, slotSize), p.end.bufs.Target(p.remote, at, slotSize), uint32(p.sent))
		if err := pe.SubmitOrFree(task, err, p.wrote); err != nil {
			p.end.rdma.Fail(err)
			return
		}
		p.sent++
	}
}

func (p *producer) wrote(t *rdma.Task, err error) {
	if err = errors.Join(err, t.Free()); err != nil {
		p.end.rdma.Fail(err)
		return
	}
	p.written++
	p.push()
}

// consumer takes the chunks, and says how many it has taken.
type consumer struct {
	end     *end // memory for the slots
	conn    *rdma.Connection
	credits *rdma.Pool
	take    func(chunk int, slot []byte)
	taken   uint32
	given   uint32 // how many of these the producer has been told
}

// prepare makes the task for the consumer's messages, and posts a receive for each slot.
func (c *consumer) prepare() (err error) {
	c.credits, err = c.end.rdma.Pool(1,
		func(t *rdma.Task) {
			_ = t.Free()
			c.giveBack()
		},
		func(t *rdma.Task, err error) { c.end.rdma.Fail(errors.Join(err, t.Free())) })
	if err != nil {
		return err
	}
	return c.end.rdma.Receive(slots, 0, func(m *rdma.Message) {
		chunk, _ := m.Imm()
		c.take(int(chunk), c.end.memory.Bytes()[int(chunk)%slots*slotSize:][:slotSize])
		c.taken++
		c.giveBack()
	})
}

// giveBack tells the producer how many chunks have been taken. One message is under way at a
// time; its completion calls giveBack again.
func (c *consumer) giveBack() {
	if c.given == c.taken || c.credits.Available() == 0 || c.end.rdma.State() != pe.Running {
		return
	}
	c.given = c.taken
	task, err := c.credits.SendImm(c.conn, nil, c.taken)
	c.end.rdma.Fail(pe.SubmitOrFree(task, err)) // Fail(nil) does nothing
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
	here.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			p.push()
		}
	})
	fmt.Println(engine.Run(context.Background()))
	fmt.Println(right, "chunks are right")
	check(errors.Join(here.rdma.Close(), there.rdma.Close(), remote.Close()))
	here.close()
	there.close()
	// Output:
	// <nil>
	// 1000 chunks are right
}
