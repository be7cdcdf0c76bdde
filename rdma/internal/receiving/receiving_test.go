package receiving

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// qp is a queue pair that takes receives, until it is told to refuse them.
type qp struct {
	verbs.QP
	posted []uint64 // IDs
	refuse error
}

func (q *qp) Num() uint32 { return 17 }

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if q.refuse != nil {
		return 0, q.refuse
	}
	for _, wr := range wrs {
		q.posted = append(q.posted, wr.ID)
	}
	return len(wrs), nil
}

// pd makes the queue pairs of lanes.
type pd struct {
	verbs.PD
	next *qp
}

func (p pd) CreateQP(verbs.QPInit) (verbs.QP, error) { return p.next, nil }

func (p pd) Device() verbs.Device { return nil }

// end is a connection: a queue, and what it has learned.
type end struct {
	qp     qp
	queue  Queue
	failed error
}

func (e *end) RefillFailed(err error) { e.failed = err }

func newEnd(t *testing.T, r *Receives, number int) *end {
	e := &end{}
	e.queue.Owner = e
	var group lane.Group
	l, err := group.Open(pd{next: &e.qp}, verbs.QPInit{}, 1, nil)
	require.NoError(t, err)
	require.NoError(t, e.queue.Open(r, number, l))
	return e
}

// task is the owner of a receive.
type task struct {
	Receive
	flushed, posted bool
}

func (o *task) Flushed(posted bool) int {
	o.flushed, o.posted = true, posted
	return 1
}

func fill(r *Receives, n int) []*task {
	tasks := make([]*task, n)
	r.Reserve(n)
	for i := range tasks {
		tasks[i] = &task{}
		r.Add(&tasks[i].Receive, tasks[i])
	}
	return tasks
}

// Without a shared queue, each connection gets its share of the receives, in turn. Those of a queue
// pair that is reset go to others, and its completions count no more.
func TestShares(t *testing.T) {
	var r Receives
	tasks := fill(&r, 7)
	require.NoError(t, r.Open(Config{Depth: 6, Connections: 2}))
	require.Equal(t, 3, r.QueueSize())
	a, b := newEnd(t, &r, 0), newEnd(t, &r, 1)
	a.queue.Start()
	b.queue.Start()
	require.NoError(t, r.Post())
	require.Empty(t, a.qp.posted, "none was submitted")
	for _, one := range tasks[:4] {
		r.Push(&one.Receive)
	}
	require.NoError(t, r.Post())
	require.Len(t, a.qp.posted, 3, "its share")
	require.Len(t, b.qp.posted, 1)

	first, ok := r.Take(&verbs.WC{ID: a.qp.posted[0]})
	require.True(t, ok)
	require.Equal(t, &tasks[0].Receive, first.Receive)
	require.Equal(t, &a.queue, first.Queue)
	require.Equal(t, tasks[0], first.Owner)
	old := a.qp.posted[1]
	a.queue.Return()
	_, ok = r.Take(&verbs.WC{ID: old})
	require.False(t, ok, "it was returned")
	require.NoError(t, r.Post())
	require.Len(t, b.qp.posted, 3, "b gets the receives of a")

	a.queue.Hold()
	a.queue.Start()
	r.Push(&tasks[0].Receive)
	require.NoError(t, r.Post())
	require.Len(t, a.qp.posted, 3, "a helper has the queue pair, and b is full")
	a.queue.Resume()
	require.NoError(t, r.Post())
	require.Len(t, a.qp.posted, 4)

	a.qp.refuse = errors.New("refused")
	for _, one := range tasks[4:] {
		r.Push(&one.Receive)
	}
	require.NoError(t, r.Post())
	require.ErrorIs(t, a.failed, a.qp.refuse)
	require.False(t, r.Busy(), "a takes no more")

	r.Stop()
	n, all := r.Flush()
	require.True(t, all)
	require.Equal(t, 7, n)
	for i, one := range tasks {
		require.True(t, one.flushed)
		require.Equal(t, i < 4, one.posted, "receive %d", i)
	}
	require.NoError(t, r.Close(false))
}

// A connection has receives of its own, and gets each again when it is free.
func TestEach(t *testing.T) {
	var r Receives
	owner := &task{}
	r.SetEach(2, 0, owner)
	require.NoError(t, r.Open(Config{Connections: 2}))
	a := newEnd(t, &r, 1)
	a.queue.Start()
	require.NoError(t, r.Post())
	require.Len(t, a.qp.posted, 2)
	taken, ok := r.Take(&verbs.WC{ID: a.qp.posted[0]})
	require.True(t, ok)
	require.Equal(t, owner, taken.Owner)
	require.Equal(t, &a.queue, taken.Queue)
	require.False(t, r.Busy())
	r.Repost(taken)
	taken, ok = r.Take(&verbs.WC{ID: a.qp.posted[1]})
	require.True(t, ok)
	require.NoError(t, r.Post())
	require.Len(t, a.qp.posted, 3, "the program may still read the other buffer")
	r.Repost(taken)
	require.NoError(t, r.Post())
	require.Len(t, a.qp.posted, 4)
	a.queue.Return()
	r.Repost(taken) // by a function that has closed the connection
	require.Zero(t, a.queue.len()-a.queue.lane.Receives())
	_, ok = r.Take(&verbs.WC{ID: a.qp.posted[2]})
	require.False(t, ok, "it was returned")
	require.NoError(t, a.queue.Close(false))
	require.NoError(t, r.Close(false))
}

// Receives of one queue for all are known by their index, and wait while the queue is full.
func TestOneQueue(t *testing.T) {
	var r Receives
	tasks := fill(&r, 3)
	require.NoError(t, r.Open(Config{Depth: 2}))
	q := &qp{}
	r.PostTo(q)
	for _, one := range tasks {
		r.Push(&one.Receive)
	}
	require.NoError(t, r.Post())
	require.Len(t, q.posted, 2)
	_, ok := r.Take(&verbs.WC{ID: lane.ReceiveID | 2})
	require.False(t, ok, "it was not posted")
	taken, ok := r.Take(&verbs.WC{ID: q.posted[1]})
	require.True(t, ok)
	require.Equal(t, tasks[1], taken.Owner)
	require.Nil(t, taken.Queue)
	require.NoError(t, r.Post())
	require.Len(t, q.posted, 3)
	q.refuse = errors.New("refused")
	_, ok = r.Take(&verbs.WC{ID: q.posted[0]})
	require.True(t, ok)
	r.Push(&tasks[0].Receive)
	require.ErrorIs(t, r.Post(), q.refuse)
	require.NoError(t, r.Close(false))
}

func TestPossible(t *testing.T) {
	require.True(t, Possible(1, 0))
	require.True(t, Possible(1<<20, 4096))
	require.False(t, Possible(1, -1))
	large := uint(1 << 31)
	require.False(t, Possible(1, int(large)))
	require.False(t, Possible(math.MaxInt/2, 100))
}
