package lane

import (
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/counters"
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/verbs"
)

// counting knows the queue pairs of a group, for other goroutines.
type counting struct {
	mu    sync.Mutex
	lanes fifo.List[*Lane] // that are open
	ended verbs.QPCounters // of the others; it has no gauges
}

// traffic counts for a queue pair that is no CountersQP. The engine's goroutine alone changes it.
type traffic struct{ sentBytes, sentMessages, receivedBytes, receivedMessages atomic.Uint64 }

// Counters are the counters of all lanes, closed ones included, and how many are open. Any goroutine
// may call it. It takes a lock for each lane.
func (g *Group) Counters() (c verbs.QPCounters, open int) {
	g.counting.mu.Lock()
	defer g.counting.mu.Unlock()
	c = g.counting.ended
	for _, l := range g.counting.lanes.Values() {
		one := l.Counters()
		counters.Add(&c, &one)
	}
	return c, g.counting.lanes.Len()
}

// Counters are the counters of the lane. Any goroutine may call it, also after Close. Without a
// CountersQP, they count what has completed.
func (l *Lane) Counters() (c verbs.QPCounters) {
	if qp, ok := l.qp.(verbs.CountersQP); ok {
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
	if _, ok := l.qp.(verbs.CountersQP); !ok {
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
	c.SendQueue, c.ReceiveQueue, c.Unacknowledged, c.Window, c.RoundTrip, c.Silence = 0, 0, 0, 0, 0, 0
	counters.Add(&n.ended, &c)
}

// noteSent counts a request that has completed with success.
func (l *Lane) noteSent(wr *verbs.SendWR) {
	if l.traffic == nil {
		return
	}
	n := uint64(0)
	for i := range wr.SGL {
		n += uint64(wr.SGL[i].Length)
	}
	l.traffic.sentMessages.Add(1)
	switch wr.Op {
	case verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd:
		l.traffic.receivedBytes.Add(n)
	default:
		l.traffic.sentBytes.Add(n)
	}
}

// NoteReceived counts a receive that has completed with success.
func (l *Lane) NoteReceived(wc *verbs.WC) {
	if l.traffic != nil {
		l.traffic.receivedMessages.Add(1)
		n := wc.Bytes
		if wc.HasGRH {
			n -= min(n, verbs.GRHLen)
		}
		l.traffic.receivedBytes.Add(uint64(n))
	}
}
