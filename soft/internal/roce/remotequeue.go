package roce

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/srd"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/verbs"
)

// remoteQueue is a completion queue of another shard, for the queue pairs of a shard.
//
// Queue pairs, completion queues and shared receive queues stay in the shard that they were made
// in, and are guarded by its lock for their whole life. Where those of one queue pair are in
// different shards, each completion goes through the inbox of the queue's shard, and what its poll
// frees through the inbox of the queue pair's. The price of a completion is two allocations, two
// locks and the waking of a goroutine. Also, polls of the queue do not drive the queue pair, whose
// own goroutine does. Programs avoid that if they make the queues of a queue pair with the same
// Poller, and those of datagrams with none.
type remoteQueue struct {
	*completionQueue
	of *shard // of the queue pair
}

// completerFor is the queue as the queue pairs of a shard know it. The locks of all shards are held.
func (c *completionQueue) completerFor(s *shard) srd.Completer {
	if s == c.shard {
		return c
	}
	if !c.remote {
		c.remote = true
		c.held.Store(int64(c.entries.Len()))
	}
	return remoteQueue{c, s}
}

// Complete implements transport.Completer. The lock of the queue pair's shard is held.
func (r remoteQueue) Complete(wc verbs.WC, frees transport.Places, solicited bool) {
	r.hand(wc, frees, solicited, verbs.NoAH, verbs.GID{})
}

// CompleteFrom implements srd.Completer. The lock of the queue pair's shard is held.
func (r remoteQueue) CompleteFrom(wc verbs.WC, frees transport.Places, number uint16, gid verbs.GID) {
	r.hand(wc, frees, false, number, gid)
}

// Room implements srd.Completer. The lock of the queue pair's shard is held.
func (r remoteQueue) Room(others int) bool { return int(r.held.Load())+others < r.entries.Depth() }

func (r remoteQueue) hand(wc verbs.WC, frees transport.Places, solicited bool, number uint16, gid verbs.GID) {
	r.held.Add(1)
	r.shard.take(handedOver{call: func(time.Duration) {
		r.held.Add(-1)
		r.complete(wc, places{Places: frees, of: r.of}, solicited, number, gid)
	}})
}

// places are what a completion frees when it is polled.
type places struct {
	transport.Places
	of *shard // of the queue pair; nil: that of the completion queue
}

// free frees them.
func (p *places) free() {
	if p.of == nil {
		p.Free()
		return
	}
	freed := p.Places
	p.of.take(handedOver{call: func(time.Duration) { freed.Free() }})
	*p = places{}
}
