package main

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/syncevent"
)

// counter is either end of a count in turns: it adds 1 to the peer's event when its own shows
// that the peer has added, -n times. The requester makes each step before the responder. A lost
// step stops both; a repeated one is an error.
type counter struct {
	*end
	peers      *syncevent.Event
	adds, gets *rdma.Pool
	waits      *syncevent.Pool
	adding     bool // an addition is in flight
	done       bool
	seen       int // the peer's additions
	made       int // our additions
}

func counts(e *end) role { return &counter{end: e} }

func (c *counter) open() (err error) {
	cfg := syncevent.Config{Publishers: syncevent.PublishRemote, PollInterval: syncevent.MinPollInterval}
	if !c.requester { // it sets its own event at the end
		cfg.Publishers, cfg.NeverConcurrent = syncevent.PublishRemote|syncevent.PublishLocal, true
	}
	if c.event, err = syncevent.New(c.dev, cfg); err != nil {
		return err
	}
	if c.events, err = syncevent.NewContext(syncevent.ContextConfig{Engine: c.engine}); err != nil {
		return err
	}
	c.stopping = func() {
		if !c.done { // the peer may have closed the connection while nothing was in flight
			c.rdma.Fail(fmt.Errorf("the count has ended after %d steps of the peer, want %d", c.seen, c.n))
		}
		c.events.Stop()
	}
	if c.adds, err = c.rdma.Pool(1, c.wasAdded, c.failed); err != nil {
		return err
	}
	if c.gets, err = c.rdma.Pool(1, c.got, c.failed); err != nil {
		return err
	}
	c.waits, err = c.events.Pool(1, c.wasWoken, func(t *syncevent.Task, err error) {
		c.rdma.Fail(errors.Join(err, t.Free()))
	})
	return errors.Join(err, c.events.Start())
}

func (c *counter) begin(theirs *oob.Answer) error {
	c.peers = theirs.Events[0]
	return errors.Join(c.wait(), c.next())
}

func (c *counter) wait() error {
	if c.seen == c.n {
		return nil
	}
	return pe.SubmitOrFree(c.waits.Wait(c.event, syncevent.Greater(uint64(c.seen))))
}

// next adds 1 if it is this end's turn, or ends the count.
func (c *counter) next() error {
	allowed := c.seen
	if c.requester {
		allowed++
	}
	switch {
	case c.adding || c.done || c.rdma.Err() != nil:
	case c.made < min(c.n, allowed):
		c.made++
		c.adding = true
		return pe.SubmitOrFree(c.adds.SyncEventAdd(c.conns[0], c.peers, 1))
	case c.made == c.n && c.seen == c.n:
		c.done = true
		c.print("counted to: %s", word(uint64(c.n)))
		if c.requester {
			return c.get()
		}
		// All tasks of this end have completed. The requester keeps the connection until then.
		c.endWithPeer(func() error { return nil })
		return c.event.Set(finished)
	}
	return nil
}

func (c *counter) get() error { return pe.SubmitOrFree(c.gets.SyncEventGet(c.conns[0], c.peers)) }

func (c *counter) wasAdded(t *rdma.Task) {
	was := t.Original()
	c.adding = false
	err := t.Free()
	if was != uint64(c.made-1) {
		err = errors.Join(err, fmt.Errorf("addition %d returned the value %d", c.made, was))
	}
	if err == nil {
		err = c.next()
	}
	c.rdma.Fail(err)
}

func (c *counter) wasWoken(t *syncevent.Task) {
	v := t.Original()
	c.seen++
	err := t.Free()
	if v != uint64(c.seen) {
		err = errors.Join(err, fmt.Errorf("step %d was lost or made twice: the value is %d", c.seen, v))
	}
	if err == nil {
		err = errors.Join(c.wait(), c.next())
	}
	c.rdma.Fail(err)
}

func (c *counter) got(t *rdma.Task) {
	v := t.Original()
	err := t.Free()
	switch {
	case err != nil:
	case v == finished:
		c.rdma.Stop()
	case v != uint64(c.n):
		err = fmt.Errorf("the responder's event is %d, want %d", v, c.n)
	default:
		err = c.get()
	}
	c.rdma.Fail(err)
}
