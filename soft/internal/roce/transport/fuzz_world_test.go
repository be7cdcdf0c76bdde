package transport

import (
	"sync"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

const (
	fuzzInline  = 64   // bytes inline
	fuzzLink    = 96   // packets on their way, at most
	fuzzSteps   = 1000 // of an input
	fuzzScratch = 32 << 10
)

// fuzzWorld is a connection under load that a fuzzer talks into, and steers: the client and
// the server, and a third queue pair that shares the server's memory and has no peer.
type fuzzWorld struct {
	t       testing.TB
	now     time.Duration
	client  fuzzQP
	server  fuzzQP
	other   fuzzQP
	hosts   [2]fuzzHost
	o       fuzzOptions
	nextID  uint64
	watched bool // the packet at hand is one that watches see

	*fuzzBuffers
	inline [fuzzInline + 8]byte
}

// fuzzBuffers are what the next input uses again.
type fuzzBuffers struct {
	buf     []byte // of payloads on their way
	scratch []byte
	links   [3][]fuzzPacket
}

var fuzzSpare = sync.Pool{New: func() any {
	b := &fuzzBuffers{scratch: make([]byte, 0, fuzzScratch)}
	for i := range b.links {
		b.links[i] = make([]fuzzPacket, 0, fuzzLink)
	}
	return b
}}

// fuzzOptions are what the first bytes of an input choose.
type fuzzOptions struct {
	options
	guarded, shared bool
}

func (w *fuzzWorld) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf(format, args...)
}

func newFuzzWorld(t testing.TB, o fuzzOptions) *fuzzWorld {
	w := &fuzzWorld{t: t, now: time.Second, o: o, fuzzBuffers: fuzzSpare.Get().(*fuzzBuffers)}
	w.buf = w.buf[:0]
	for i := range w.hosts {
		w.hosts[i].start(w)
	}
	h := &w.hosts[1]
	if o.shared {
		h.shared = NewRecvQueue(h.memory, testDomain, o.recvDepth, o.maxSGE)
		h.shared.Share(func() {
			if h.shared.Len() >= h.shared.Depth() {
				w.fail("the limit is reached by a full queue")
			}
		})
	}
	w.client = fuzzQP{w: w, host: &w.hosts[0], num: clientQPN, peer: &w.server}
	w.server = fuzzQP{w: w, host: h, num: serverQPN, peer: &w.client}
	w.other = fuzzQP{w: w, host: h, num: serverQPN + 1}
	for i, q := range w.all() {
		q.link = w.links[i][:0]
		q.open()
		q.connect(0)
	}
	w.load()
	return w
}

// load gives the queue pairs something to do: windows, receives, and requests of the client.
func (w *fuzzWorld) load() {
	if w.o.kind != verbs.UD {
		for i, q := range [...]*fuzzQP{&w.server, &w.server, &w.server, &w.client} {
			// What is bound, its offset, and its length in words.
			q.bind([...]byte{0, 2, 1, 0}[i], &fuzzInput{[...]byte{0, 1, 2, 0}[i], [...]byte{128, 0, 4, 64}[i], [...]byte{32, 4, 8, 8}[i]})
			q.transmit(16)
		}
	}
	for _, q := range w.all() {
		for i := range byte(2) {
			q.postReceive(&fuzzInput{i})
		}
	}
	for op := range byte(7) {
		const signaled, length, open, off = 1, 8, fuzzOpen, 128
		w.client.post(0, &fuzzInput{op, signaled, length, open, off, 16})
	}
}

func (w *fuzzWorld) all() [3]*fuzzQP { return [...]*fuzzQP{&w.client, &w.server, &w.other} }

// keep copies a payload. What is too long for it is of the vast region, which does not change.
func (w *fuzzWorld) keep(pieces [][]byte, n int) []byte {
	if n > fuzzScratch {
		return pieces[0]
	}
	at := len(w.buf)
	for _, b := range pieces {
		w.buf = append(w.buf, b...)
	}
	return w.buf[at:len(w.buf):len(w.buf)]
}

// open makes the queue pair, in Reset.
func (q *fuzzQP) open() {
	h, o := q.host, &q.w.o
	if q.rq = h.shared; q.rq == nil {
		q.rq = NewRecvQueue(h.memory, testDomain, o.recvDepth, o.maxSGE)
	}
	c := Config{
		Type: o.kind, PortMTU: o.mtu, CheckAH: q.checkAH, Bind: findTestBind, Window: o.window,
		Num: q.num, Domain: testDomain, Memory: h.memory, Send: fuzzSends{q}, Recv: fuzzRecvs{q}, RecvQueue: q.rq,
		SendDepth: o.depth, MaxSendSGE: o.maxSGE, MaxInline: fuzzInline, SignalAll: o.signalAll, Adaptive: o.adaptive,
		Counters: &h.counters, RNRWaiters: &h.waiting, Event: q.event,
	}
	if o.guarded {
		c.Guard = &h.guard
	}
	q.qp = New(c)
	q.forget()
	q.qp.SetCongestionControl(o.controlled)
}

// forget drops what reset does: nothing of it completes.
func (q *fuzzQP) forget() {
	if q.rq.shared && q.qp.inReceive {
		list := q.receiveList()
		for i := range *list {
			if (*list)[i].id == q.qp.current.id {
				*list = append((*list)[:i], (*list)[i+1:]...)
				break
			}
		}
	}
	q.requests, q.receives = q.requests[:0], q.receives[:0]
	q.failed, q.refused, q.writing, q.used, q.executed = false, false, fuzzGrant{}, map[uint32]bool{}, q.executed[:0]
}

// reset takes the queue pair to Reset.
func (q *fuzzQP) reset() {
	q.forget()
	if err := q.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState); err != nil {
		q.w.fail("reset: %v", err)
	}
	q.checkNoWindows()
}

// checkNoWindows fails if a window is still bound on the queue pair.
func (q *fuzzQP) checkNoWindows() {
	for i := range q.host.windows {
		if w := &q.host.windows[i]; w.qp == q.qp || w.region == nil && w.qp != nil {
			q.w.fail("window %d is bound on a queue pair that has none", i)
		}
	}
	q.host.checkWindows()
}

// attr is what the peer is told of, from a number that both know.
func (q *fuzzQP) attr(numbers uint32) verbs.QPAttr {
	there, back := uint32(0xfffff8)+numbers, uint32(0xfffffc)+numbers
	peer := uint32(0x99)
	if q.peer != nil {
		peer = q.peer.num
	}
	if q == &q.w.client {
		return q.w.o.attr(peer, there&0xffffff, back&0xffffff)
	}
	return q.w.o.attr(peer, back&0xffffff, there&0xffffff)
}

// connect takes the queue pair from Reset to RTS.
func (q *fuzzQP) connect(numbers uint32) {
	for range 3 {
		q.forward(numbers)
	}
	if q.qp.state != verbs.QPReadyToSend {
		q.w.fail("in state %v, not RTS", q.qp.state)
	}
}

// forward takes the next step to RTS.
func (q *fuzzQP) forward(numbers uint32) {
	i, to := 0, verbs.QPInitialized
	switch q.qp.state {
	case verbs.QPReset:
	case verbs.QPInitialized:
		i, to = 1, verbs.QPReadyToReceive
	case verbs.QPReadyToReceive:
		i, to = 2, verbs.QPReadyToSend
	default:
		return
	}
	a := q.attr(numbers)
	a.State = to
	if err := q.qp.Modify(a, masks[q.qp.kind][i]); err != nil {
		q.w.fail("to %v: %v", to, err)
	}
}

// carry lets both ends send, and delivers their packets.
func (w *fuzzWorld) carry(rounds int) {
	for range rounds {
		for _, q := range [...]*fuzzQP{&w.client, &w.server} {
			q.transmit(16)
			for len(q.link) > 0 {
				q.arrive(0, 0)
			}
		}
	}
}

// finish has everything that is posted come to its end, and looks at what is left.
func (w *fuzzWorld) finish() {
	w.carry(4)
	for _, q := range w.all() {
		if q.qp.state != verbs.QPReset {
			_ = q.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState)
			for _, r := range q.requests {
				if r.signaled {
					w.fail("request %+v of queue pair %#x does not complete", r, q.num)
				}
			}
			if !q.rq.shared && len(q.receives) > 0 {
				w.fail("receives %+v of queue pair %#x do not complete", q.receives, q.num)
			}
		}
		q.close()
	}
	for i := range w.hosts {
		h := &w.hosts[i]
		h.check()
		if h.shared != nil && h.shared.Len() != len(h.receives) {
			w.fail("%d receives in the shared queue, not %d", h.shared.Len(), len(h.receives))
		}
		if h.waiting.n != 0 {
			w.fail("%d queue pairs wait for receives, and all are closed", h.waiting.n)
		}
		var sum Counters
		sum.Add(&h.counters)
		received := uint64(0)
		for _, q := range w.all() {
			if q.host == h {
				received += q.received
			}
		}
		if sum.Receives != received {
			w.fail("%d receives counted, %d completed", sum.Receives, received)
		}
		fuzzRows.Put(h.fuzzRow)
	}
	fuzzSpare.Put(w.fuzzBuffers)
}

// close ends the queue pair.
func (q *fuzzQP) close() {
	q.forget()
	q.qp.Close()
	q.checkNoWindows()
	q.link = q.link[:0]
}
