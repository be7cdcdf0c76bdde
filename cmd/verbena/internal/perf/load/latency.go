package load

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/machine"
	"github.com/verbena-rdma/verbena/verbs"
)

// meter measures operations that go one at a time.
type meter struct {
	w       *worker
	deliver func(*Sample)
	sample  Sample
	phase   phase
	begun   time.Time
	fewer   int64 // than the iterations of the plan are measured
}

func (m *meter) begin(deliver func(*Sample)) {
	m.deliver, m.begun = deliver, time.Now()
	m.sample.Latency = NewLatency()
	if m.w.plan.WarmUp == 0 {
		m.mark(m.begun)
	}
}

func (m *meter) mark(now time.Time) {
	m.phase = measuring
	m.sample.From, m.sample.fromCPU = now, machine.CPUTime()
}

// record takes the time of an operation that has ended now, and reports whether to go on.
func (m *meter) record(d time.Duration, now time.Time) bool {
	if m.phase == warming {
		if now.Sub(m.begun) >= m.w.plan.WarmUp {
			m.mark(now)
		}
		return true
	}
	m.sample.Operations++
	m.sample.Latency.Record(d)
	p := m.w.plan
	if p.Iterations > 0 && m.sample.Operations < p.Iterations-m.fewer || p.Duration > 0 && now.Sub(m.sample.From) < p.Duration {
		return true
	}
	m.phase = draining
	m.sample.To, m.sample.toCPU = now, machine.CPUTime()
	m.w.whenQuiet(func() { m.deliver(&m.sample) })
	return false
}

// requests is one request after the other, each from its submission to its completion.
type requests struct {
	meter
	f     *flow
	start time.Time
}

func newRequests(w *worker) *requests { return &requests{meter: meter{w: w}, f: w.flows[0]} }

func (r *requests) begin(deliver func(*Sample)) {
	r.meter.begin(deliver)
	r.next()
}

func (r *requests) next() {
	t := r.f.next()
	r.start = time.Now()
	if r.w.submit(t, 0) {
		r.f.posted++
	}
}

func (r *requests) completed(*flow) {
	now := time.Now()
	if r.record(now.Sub(r.start), now) {
		r.next()
	}
}

func (r *requests) arrived() {}

// ping is a message to the peer and one back.
type ping struct {
	meter
	f     *flow
	due   bool // a message is to go as soon as its task is free
	start time.Time
}

func newPing(w *worker) *ping { return &ping{meter: meter{w: w}, f: w.flows[0]} }

func (p *ping) begin(deliver func(*Sample)) {
	p.meter.begin(deliver)
	p.hit(p.begun)
}

// hit sends a message. Its time begins with what it follows: one look at the clock ends a round
// trip and begins the next, as in perftest.
func (p *ping) hit(now time.Time) {
	t := p.f.next()
	if p.due = t.InFlight(); p.due {
		return
	}
	p.start = now
	if p.w.submit(t, 0) {
		p.f.posted++
	}
}

func (p *ping) completed(*flow) {
	if p.due {
		p.hit(time.Now())
	}
}

func (p *ping) arrived() {
	if p.w.server {
		p.hit(time.Time{}) // it measures nothing
		return
	}
	if p.phase == draining {
		return
	}
	now := time.Now()
	if p.record(now.Sub(p.start)/2, now) {
		p.hit(now)
	}
}

// ball is a write to the peer and one back, which each end sees by looking at its memory: the
// last byte counts the writes.
type ball struct {
	ping
	n    byte           // the next to come
	mine byte           // the one that goes to the peer
	word *atomic.Uint32 // around the last byte
	bit  int            // its place there
	out  *byte          // the last byte that is written
	// starts: this end writes first, and the peer answers. That is the client, except with
	// the programs of perftest.
	starts   bool
	measures bool
	counts   bool // this end measures, although it does not start: it needs all of them
	any      bool // has come
	looks    int  // at the memory after each pass
}

// adapterLooks is how often the memory is looked at between two passes of the engine where an
// adapter writes to it at any time: what comes during a pass is seen after it, and a pass takes a
// hundred times as long as a look. A software device writes during passes.
const adapterLooks = 256

func newBall(w *worker) *ball {
	b := &ball{ping: ping{meter: meter{w: w}, f: w.flows[0]}, n: 1, looks: 1}
	if b.f.conn.Path() == verbs.PathUnknown {
		b.looks = adapterLooks
	}
	mem, last := w.local.Bytes(), w.layout.InOffset(0)+w.size-1
	b.out = &mem[w.layout.OutOffset(0)+w.size-1]
	b.word = (*atomic.Uint32)(unsafe.Pointer(&mem[last&^3]))
	b.bit = bitOf(last & 3)
	b.starts = w.server == w.station.cfg.Foreign
	if !b.starts {
		b.fewer = 1 // the first that comes tells no time
		b.counts = w.station.cfg.Foreign
	}
	return b
}

func (b *ball) begin(deliver func(*Sample)) {
	b.meter.begin(deliver)
	b.measures = true
	if b.starts {
		b.mine = b.n
		b.strike(b.begun)
	}
}

// strike writes the number to the peer.
func (b *ball) strike(now time.Time) {
	if !b.f.next().InFlight() {
		*b.out = b.mine // the peer has answered all earlier ones
	}
	b.hit(now)
}

func (b *ball) completed(*flow) {
	if b.due {
		b.strike(time.Now())
	}
}

// look looks whether the number is there.
func (b *ball) look() {
	if b.due || b.phase == draining || b.starts && b.f.posted == 0 || b.counts && !b.measures {
		return
	}
	for range b.looks {
		if byte(b.word.Load()>>b.bit) == b.n {
			b.seen(time.Now())
			return
		}
	}
}

// seen handles the number that has come.
func (b *ball) seen(now time.Time) {
	if !b.starts {
		last := b.start
		b.mine = b.n
		b.n++
		b.strike(now)
		if b.measures && b.any {
			b.record(now.Sub(last)/2, now)
		}
		b.any = true
		b.start = now
		return
	}
	b.n++
	b.mine = b.n
	if b.record(now.Sub(b.start)/2, now) {
		b.strike(now)
	}
}
