package load

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/internal/processor"
	"github.com/verbena-rdma/verbena/verbs"
)

// meter measures operations that run one at a time.
type meter struct {
	plan    *plan.Plan
	sample  Sample
	phase   phase
	begun   time.Time
	shortBy int64 // by how many the measured operations fall short of the plan's iterations
}

func (m *meter) begin() {
	m.begun = time.Now()
	m.sample.Latency = NewLatency()
	if m.plan.WarmUp == 0 {
		m.mark(m.begun)
	}
}

func (m *meter) mark(now time.Time) {
	m.phase = measuring
	m.sample.From, m.sample.fromCPU = now, processor.Time()
}

// record adds the duration of an operation that ended at now, and reports whether to go on.
func (m *meter) record(d time.Duration, now time.Time) bool {
	p := m.plan
	if m.phase == warming {
		if now.Sub(m.begun) >= p.WarmUp {
			m.mark(now)
		}
		return true
	}
	m.sample.Operations++
	m.sample.Latency.Record(d)
	if p.Iterations > 0 && m.sample.Operations < p.Iterations-m.shortBy || p.Duration > 0 && now.Sub(m.sample.From) < p.Duration {
		return true
	}
	m.phase = draining
	m.sample.To, m.sample.toCPU = now, processor.Time()
	return false
}

// latencyMeter delivers what a meter has measured.
type latencyMeter struct {
	meter
	w       *worker
	deliver func(*Sample)
}

func newLatencyMeter(w *worker) latencyMeter { return latencyMeter{meter: meter{plan: w.plan}, w: w} }

func (m *latencyMeter) begin(deliver func(*Sample)) {
	m.deliver = deliver
	m.meter.begin()
}

func (m *latencyMeter) record(d time.Duration, now time.Time) bool {
	more := m.meter.record(d, now)
	if !more {
		m.w.whenIdle(func() { m.deliver(&m.sample) })
	}
	return more
}

// requestLoad runs one request after the other, and times each from its submission to its
// completion.
type requestLoad struct {
	latencyMeter
	f     *flow
	start time.Time
}

func newRequestLoad(w *worker) *requestLoad {
	return &requestLoad{latencyMeter: newLatencyMeter(w), f: w.flows[0]}
}

func (r *requestLoad) begin(deliver func(*Sample)) {
	r.latencyMeter.begin(deliver)
	r.next()
}

func (r *requestLoad) next() {
	t := r.f.next()
	r.start = time.Now()
	if r.w.submit(t, 0) {
		r.f.posted++
	}
}

func (r *requestLoad) completed(*flow) {
	now := time.Now()
	if r.record(now.Sub(r.start), now) {
		r.next()
	}
}

func (r *requestLoad) arrived() {}

// pingLoad sends a message to the peer and waits for one back.
type pingLoad struct {
	latencyMeter
	f     *flow
	due   bool // send the next message as soon as its task is free
	start time.Time
}

func newPingLoad(w *worker) *pingLoad {
	return &pingLoad{latencyMeter: newLatencyMeter(w), f: w.flows[0]}
}

func (p *pingLoad) begin(deliver func(*Sample)) {
	p.latencyMeter.begin(deliver)
	p.send(p.begun)
}

// send sends a message. Its time starts at now, when the previous round trip ended: one reading
// of the clock ends a round trip and begins the next, as in perftest.
func (p *pingLoad) send(now time.Time) {
	t := p.f.next()
	if p.due = t.InFlight(); p.due {
		return
	}
	p.start = now
	if p.w.submit(t, 0) {
		p.f.posted++
	}
}

func (p *pingLoad) completed(*flow) {
	if p.due {
		p.send(time.Now())
	}
}

func (p *pingLoad) arrived() {
	if p.w.server {
		p.send(time.Time{}) // the server measures nothing
		return
	}
	if p.phase == draining {
		return
	}
	now := time.Now()
	if p.record(now.Sub(p.start)/2, now) {
		p.send(now)
	}
}

// writePingLoad is a write to the peer and one back. Each end polls its memory for the peer's
// write: the last byte counts the writes.
type writePingLoad struct {
	pingLoad
	peerCount  byte           // the count in the peer's next write
	ownCount   byte           // the count in this end's next write
	word       *atomic.Uint32 // the word in memory that holds the last byte
	bit        int            // the position of the last byte in word
	sourceByte *byte          // the last byte of the source
	// starts: this end writes first, and the peer answers. The client starts, except with the
	// programs of perftest.
	starts    bool
	measures  bool
	counts    bool // this end measures but does not start: it must see every write
	peerWrote bool // a write of the peer has arrived
	polls     int  // how often memory is polled after each pass
}

// adapterPolls is how often the memory is polled between two passes of the engine if the
// device is an adapter. An adapter writes at any time, a write during a pass is seen only
// after it, and a pass takes a hundred times as long as reading the memory. A software
// device writes during passes.
const adapterPolls = 256

func newWritePingLoad(w *worker) *writePingLoad {
	b := &writePingLoad{pingLoad: pingLoad{latencyMeter: newLatencyMeter(w), f: w.flows[0]}, peerCount: 1, polls: 1}
	if b.f.conn.Counters().Path == verbs.PathUnknown {
		b.polls = adapterPolls
	}
	mem, last := w.local.Bytes(), w.layout.InOffset(0)+w.size-1
	b.sourceByte = &mem[w.layout.OutOffset(0)+w.size-1]
	b.word = (*atomic.Uint32)(unsafe.Pointer(&mem[last&^3]))
	b.bit = bitOf(last & 3)
	b.starts = w.server == w.endpoint.cfg.Perftest
	if !b.starts {
		b.shortBy = 1 // the first write of the peer ends no round trip
		b.counts = w.endpoint.cfg.Perftest
	}
	return b
}

func (b *writePingLoad) begin(deliver func(*Sample)) {
	b.latencyMeter.begin(deliver)
	b.measures = true
	if b.starts {
		b.ownCount = b.peerCount
		b.sendCount(b.begun)
	}
}

// sendCount writes the next count to the peer.
func (b *writePingLoad) sendCount(now time.Time) {
	if !b.f.next().InFlight() {
		*b.sourceByte = b.ownCount // the peer has answered all earlier writes
	}
	b.send(now)
}

func (b *writePingLoad) completed(*flow) {
	if b.due {
		b.sendCount(time.Now())
	}
}

// pollMemory polls the memory for the peer's next count.
func (b *writePingLoad) pollMemory() {
	if b.due || b.phase == draining || b.starts && b.f.posted == 0 || b.counts && !b.measures {
		return
	}
	for range b.polls {
		if byte(b.word.Load()>>b.bit) == b.peerCount {
			b.countArrived(time.Now())
			return
		}
	}
}

// countArrived handles the arrival of the peer's next count.
func (b *writePingLoad) countArrived(now time.Time) {
	if !b.starts {
		last := b.start
		b.ownCount = b.peerCount
		b.peerCount++
		b.sendCount(now)
		if b.measures && b.peerWrote {
			b.record(now.Sub(last)/2, now)
		}
		b.peerWrote = true
		b.start = now
		return
	}
	b.peerCount++
	b.ownCount = b.peerCount
	if b.record(now.Sub(b.start)/2, now) {
		b.sendCount(now)
	}
}
