package lane

import (
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/counters"
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/optional"
	"github.com/verbena-rdma/verbena/verbs"
)

// counting knows the queue pairs of a group, for other goroutines.
type counting struct {
	mu    sync.Mutex
	lanes fifo.List[*Lane] // that are open
	ended verbs.QPCounters // of the others; it has no gauges
}

// traffic counts for a queue pair that is no optional.CountersQP. The engine's goroutine alone changes it.
type traffic struct {
	sentBytes, sentMessages, receivedBytes, receivedMessages atomic.Uint64

	_ [32]byte // the rest of a cache line, which a lane of another engine could have
}

// Counters are the counters of all lanes, closed ones included, and how many are open. Any goroutine
// may call it. It takes a lock for each lane.
func (g *Group) Counters() (c verbs.QPCounters, open int) {
	g.counting.mu.Lock()
	c, lanes := g.counting.ended, g.counting.lanes.Values()
	g.counting.mu.Unlock() // the engine, which opens and closes lanes, does not wait for the lanes' locks
	for _, l := range lanes {
		one := l.Counters()
		counters.Add(&c, &one)
	}
	return c, len(lanes)
}

// Counters are the counters of the lane. Any goroutine may call it, also after Close. Without a
// CountersQP, they count what has completed.
func (l *Lane) Counters() (c verbs.QPCounters) {
	if qp, ok := l.qp.(optional.CountersQP); ok {
		return qp.Counters()
	}
	t := l.traffic
	return verbs.QPCounters{
		SentBytes: t.sentBytes.Load(), SentMessages: t.sentMessages.Load(),
		ReceivedBytes: t.receivedBytes.Load(), ReceivedMessages: t.receivedMessages.Load(),
	}
}

// Lanes are the lanes that are open, oldest first. Any goroutine may call it, and of the lanes only
// Counters, Num, QP and Owner.
func (g *Group) Lanes() []*Lane {
	g.counting.mu.Lock()
	defer g.counting.mu.Unlock()
	return g.counting.lanes.Values()
}

// count begins to count the lane.
func (l *Lane) count() {
	if _, ok := l.qp.(optional.CountersQP); !ok {
		l.traffic = new(traffic)
	}
	l.counted.Value = l
	n := &l.group.counting
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lanes.Push(&l.counted)
}

// stopCounting ends the counting of a lane whose queue pair is gone.
func (l *Lane) stopCounting() {
	n := &l.group.counting
	n.mu.Lock()
	defer n.mu.Unlock()
	if !l.counted.Queued() {
		return
	}
	n.lanes.Remove(&l.counted)
	c := l.Counters()
	counters.ClearGauges(&c)
	counters.Add(&n.ended, &c)
}

// noteSent counts a request that has completed with success.
func (l *Lane) noteSent(wr *verbs.SendWR) {
	if t := l.traffic; t != nil {
		t.sent(wr)
	}
}

func (t *traffic) sent(wr *verbs.SendWR) {
	if wr.Op == verbs.OpBindMW || wr.Op == verbs.OpLocalInvalidate {
		return // it stays at this end
	}
	n := uint64(0)
	for i := range wr.SGL {
		n += uint64(wr.SGL[i].Length)
	}
	t.sentMessages.Add(1)
	switch wr.Op {
	case verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd:
		t.receivedBytes.Add(n)
	default:
		t.sentBytes.Add(n)
	}
}

// NoteReceived counts a receive that has completed with success.
func (l *Lane) NoteReceived(wc *verbs.WC) {
	if t := l.traffic; t != nil {
		t.received(wc)
	}
}

func (t *traffic) received(wc *verbs.WC) {
	n := wc.Bytes
	if wc.HasGRH {
		n -= min(n, verbs.GRHLen)
	}
	t.receivedMessages.Add(1)
	t.receivedBytes.Add(uint64(n))
}
