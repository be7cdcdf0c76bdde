package transport

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// roomToSend is how many more requests a queue pair takes, which it then has.
func (r *rig) roomToSend(e *end) (n int) {
	r.t.Helper()
	for n < 100 {
		wr := r.wr(99, verbs.OpSend, 8)
		wr.Flags = 0
		if _, err := e.qp.PostSend([]verbs.SendWR{wr}); err != nil {
			require.ErrorIs(r.t, err, verbs.ErrQueueFull)
			return n
		}
		n++
	}
	return n
}

// roomIn is how many more receives a queue takes, which it then has.
func (r *rig) roomIn(q *RecvQueue) (n int) {
	r.t.Helper()
	for n < 100 {
		if _, err := q.Post([]verbs.RecvWR{{ID: 99}}); err != nil {
			require.ErrorIs(r.t, err, verbs.ErrQueueFull)
			return n
		}
		n++
	}
	return n
}

// A request without a completion occupies its queue entry until a later completion has been
// polled.
func TestUnsignaledEntries(t *testing.T) {
	t.Parallel()
	for _, kind := range []verbs.QPType{verbs.RC, verbs.UC} {
		r := newRig(t, options{kind: kind, depth: 4})
		for i := range 6 {
			r.server.postRecv(verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{r.remote.sge(0, 8)}})
		}
		silent := r.wr(1, verbs.OpSend, 8)
		silent.Flags = 0
		r.client.post(silent, silent, r.wr(3, verbs.OpSend, 8), silent)
		r.exchange()
		require.Zero(t, r.client.qp.sq.Len(), "%v: all are done", kind)
		_, err := r.client.qp.PostSend([]verbs.SendWR{silent})
		require.ErrorIs(t, err, verbs.ErrQueueFull)
		require.Equal(t, []uint64{3}, ids(r.client.send.take()))
		require.Equal(t, 3, r.roomToSend(r.client), "%v: the last has its place", kind)
	}
}

// A receive occupies its queue entry until its completion has been polled, in the receive
// queue of the queue pair and in a shared one.
func TestReceiveEntries(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{false, true} {
		o := options{recvDepth: 3}
		if shared {
			o.shared = NewRecvQueue(NewMemory(), testDomain, 3, 1)
			o.shared.Share(func() {})
		}
		r := newRig(t, o)
		require.Equal(t, 3, r.roomIn(r.server.rq))
		for range 2 {
			r.client.post(r.wr(1, verbs.OpSend, 0))
		}
		r.exchange()
		require.Equal(t, 1, r.server.rq.Len(), "shared: %v", shared)
		require.Zero(t, r.roomIn(r.server.rq), "shared: %v", shared)
		require.Len(t, r.server.recv.take(), 2)
		require.Equal(t, 2, r.roomIn(r.server.rq), "shared: %v", shared)
	}
}

// Flushed requests also occupy their queue entries until their completions have been polled.
func TestFlushedEntries(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{depth: 3, recvDepth: 3})
	r.client.post(r.wr(1, verbs.OpWrite, 8), r.wr(2, verbs.OpWrite, 8))
	r.client.postRecv(verbs.RecvWR{ID: 3}, verbs.RecvWR{ID: 4})
	r.client.modify(verbs.QPError)
	require.Equal(t, 1, r.roomToSend(r.client))
	require.Equal(t, 1, r.roomIn(r.client.rq))
	require.Equal(t, []uint64{1, 2, 99}, ids(r.client.send.take()))
	require.Equal(t, []uint64{3, 4}, ids(r.client.recv.take()))
	require.Equal(t, 3, r.roomToSend(r.client))
	require.Equal(t, 2, r.roomIn(r.client.rq), "one is posted")
}

// Reset frees all queue entries. Earlier completions that are polled afterwards free none.
func TestEntriesAfterReset(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{depth: 3, recvDepth: 3})
	r.client.post(r.wr(1, verbs.OpWrite, 8), r.wr(2, verbs.OpWrite, 8))
	r.exchange()
	r.client.post(r.wr(3, verbs.OpWrite, 8))
	r.server.postRecv(verbs.RecvWR{ID: 1}, verbs.RecvWR{ID: 2}, verbs.RecvWR{ID: 3})
	r.client.modify(verbs.QPReset)
	r.client.ready(r.o.attr(serverQPN, r.o.psn, r.o.peerPSN))
	require.Equal(t, 3, r.roomToSend(r.client))
	require.Equal(t, []uint64{1, 2}, ids(r.client.send.take()), "from before")
	require.Zero(t, r.roomToSend(r.client))
	r.server.modify(verbs.QPReset)
	require.Equal(t, 3, r.roomIn(r.server.rq))
}

// After a queue pair is closed or reset, its entries in a shared receive queue are free, even
// if a receive was in use or its completion was not polled.
func TestSharedEntriesOfFormerQueuePair(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(e *end){
		"reset": func(e *end) { e.modify(verbs.QPReset) },
		"close": func(e *end) { e.qp.Close() },
	} {
		shared := NewRecvQueue(NewMemory(), testDomain, 4, 1)
		shared.Share(func() {})
		r := newRig(t, options{shared: shared})
		for range 3 {
			_, err := shared.Post([]verbs.RecvWR{{ID: 7, SGL: []verbs.SGE{r.remote.sge(0, 1000)}}})
			require.NoError(t, err)
		}
		r.client.post(r.wr(1, verbs.OpSend, 8), r.wr(2, verbs.OpSend, 600))
		sent := r.client.transmit(r.now)
		r.server.take(r.now, sent[:2]...) // the second message has begun
		require.Equal(t, 1, shared.Len())
		end(r.server)
		require.Equal(t, 3, r.roomIn(shared), name)
		require.Len(t, r.server.recv.take(), 1)
		assert.Zero(t, r.roomIn(shared), "%s: what is polled late frees nothing", name)
	}
}
