package srd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// Connections survive an outage of the network with more than half of the window in flight:
// lost packets are sent again, however many others are assumed to be in flight.
func TestOutage(t *testing.T) {
	for _, outage := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 50 * time.Millisecond, time.Second} {
		w := newNetwork(t, 2, faults{})
		x, y := w.boot(at(1), 2, 4096), w.boot(at(2), 4, 4096)
		a, b := x.newEnd(endOptions{depth: 512, recvDepth: 1}), y.newEnd(endOptions{depth: 1, recvDepth: 1})
		x.knows(y)
		y.knows(x)
		src := x.arena(4096, verbs.AccessLocalWrite)
		dst := y.arena(4096, everyAccess)
		wr := address(verbs.SendWR{ID: 1, Op: verbs.OpWrite, RemoteAddr: dst.Base, RKey: dst.Key, SGL: []verbs.SGE{src.sge(0, 4096)}}, a.to(y), b)
		for range 400 {
			a.post(wr)
		}
		a.completed(400) // the window has grown
		w.Config.Loss = 1
		for range 400 {
			a.post(wr)
		}
		w.Pass(outage)
		w.Config.Loss = 0
		for _, wc := range a.completed(400) {
			require.Equal(t, verbs.StatusSuccess, wc.Status, "%v", outage)
		}
	}
}

// A send that does not fit into one packet of the peer's fails: it is one message.
func TestPeerWithSmallerMTU(t *testing.T) {
	w := newNetwork(t, 2, faults{})
	x, y := w.boot(at(1), 2, 4096), w.boot(at(2), 2, 1024)
	a, b := x.newEnd(endOptions{depth: 64, recvDepth: 64}), y.newEnd(endOptions{depth: 64, recvDepth: 64})
	x.knows(y)
	y.knows(x)
	src, dst := x.arena(4096, verbs.AccessLocalWrite), y.arena(8192, verbs.AccessLocalWrite)
	for _, n := range []int{1024, 1025, 4096} {
		b.postRecv(verbs.RecvWR{SGL: []verbs.SGE{dst.sge(0, 4096)}})
		wr := send(a.to(y), b, 1)
		wr.SGL = []verbs.SGE{src.sge(0, n)}
		a.post(wr)
		status := a.completed(1)[0].Status
		w.Pass(time.Second)
		if n <= 1024 {
			assert.Equal(t, verbs.StatusSuccess, status)
			assert.Len(t, b.recv.take(), 1)
			continue
		}
		assert.NotEqual(t, verbs.StatusSuccess, status, "%d bytes", n)
		assert.Empty(t, b.recv.take(), "%d bytes", n)
	}
}

// The time that one queue pair has waited does not count toward the timeout of another.
func TestPeerDeadTimeoutBeginsAnew(t *testing.T) {
	w, a, b := twoHosts(t, 2, faults{}, endOptions{depth: 64, recvDepth: 64})
	b.postRecv(verbs.RecvWR{}, verbs.RecvWR{})
	ah := a.to(b.h)
	w.Config.Loss = 1
	a.post(send(ah, b, 1))
	w.Pass(3900 * time.Millisecond)
	a.QP.reset()
	a.send.take()
	w.Config.Loss = 0
	w.Pass(10 * time.Second)
	other := a.h.newEnd(endOptions{depth: 64, recvDepth: 64})
	other.post(send(ah, b, 2))
	assert.Equal(t, verbs.StatusSuccess, other.completed(1)[0].Status)
}
