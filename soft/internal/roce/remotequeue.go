package roce

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/srd"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/verbs"
)

// remoteQueue is a completion queue of one shard, for the queue pairs of another.
//
// Queue pairs, completion queues and shared receive queues stay in the shard that they were
// made in, and are guarded by its lock for their whole life. If those of one queue pair are in
// different shards, each completion goes through the handoff queue of the completion queue's
// shard. What polling it frees goes back through the handoff queue of the queue pair's shard.
// That costs two allocations, two locks and the waking of a goroutine for each completion.
// Also, polls of the queue do not drive the queue pair; only its own goroutine does. Programs
// avoid the cost if they make the queues of a queue pair with the same Poller, and those of
// datagrams with none. Its methods are called under the lock of the queue pair's shard.
type remoteQueue struct {
	*completionQueue
	queuePairShard *shard // of the queue pair
}

// completerFor returns the queue in the form that queue pairs of shard s use. The locks of all
// shards are held.
func (c *completionQueue) completerFor(s *shard) srd.Completer {
	if s == c.shard {
		return c
	}
	if !c.remote {
		c.remote = true
		c.outstanding.Store(int64(c.entries.Len()))
	}
	return remoteQueue{c, s}
}

// Complete implements transport.Completer.
func (r remoteQueue) Complete(wc verbs.WC, frees transport.QueueEntries, solicited bool) {
	r.handOff(wc, frees, solicited, verbs.NoAH, verbs.GID{})
}

// CompleteFrom implements srd.Completer.
func (r remoteQueue) CompleteFrom(wc verbs.WC, frees transport.QueueEntries, number uint16, gid verbs.GID) {
	r.handOff(wc, frees, false, number, gid)
}

// Room implements srd.Completer.
func (r remoteQueue) Room(others int) bool {
	return int(r.outstanding.Load())+others < r.entries.Depth()
}

func (r remoteQueue) handOff(wc verbs.WC, frees transport.QueueEntries, solicited bool, number uint16, gid verbs.GID) {
	r.outstanding.Add(1)
	r.shard.enqueue(handoff{call: func(time.Duration) {
		r.outstanding.Add(-1)
		r.complete(wc, freedEntries{QueueEntries: frees, shard: r.queuePairShard}, solicited, number, gid)
	}})
}

// freedEntries are the queue entries that polling a completion frees.
type freedEntries struct {
	transport.QueueEntries
	shard *shard // the queue pair's shard; nil: the same as the completion queue's
}

// free frees them, under the lock of the queue pair's shard.
func (p *freedEntries) free() {
	if p.shard == nil {
		p.Free()
		return
	}
	freed := p.QueueEntries
	p.shard.enqueue(handoff{call: func(time.Duration) { freed.Free() }})
	*p = freedEntries{}
}
