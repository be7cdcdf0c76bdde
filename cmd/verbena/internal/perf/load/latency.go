package load

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/machine"
	"github.com/verbena-rdma/verbena/verbs"
)

// meter measures operations that run one at a time.
type meter struct {
	w       *worker
	deliver func(*Sample)
	sample  Sample
	phase   phase
	begun   time.Time
	fewer   int64 // by how many the measured operations fall short of the plan's iterations
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

// record adds the duration of an operation that ended at now, and reports whether to go on.
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

// requests runs one request after the other, and times each from its submission to its
// completion.
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

// ping sends a message to the peer and waits for one back.
type ping struct {
	meter
	f     *flow
	due   bool // send the next message as soon as its task is free
	start time.Time
}

func newPing(w *worker) *ping { return &ping{meter: meter{w: w}, f: w.flows[0]} }

func (p *ping) begin(deliver func(*Sample)) {
	p.meter.begin(deliver)
	p.hit(p.begun)
}

// hit sends a message. Its time starts at now, when the previous round trip ended: one reading
// of the clock ends a round trip and begins the next, as in perftest.
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
		p.hit(time.Time{}) // the server measures nothing
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

// ball is a write to the peer and one back. Each end polls its memory for the peer's write:
// the last byte counts the writes.
type ball struct {
	ping
	n    byte           // the count in the peer's next write
	mine byte           // the count in this end's next write
	word *atomic.Uint32 // the word in memory that holds the last byte
	bit  int            // the position of the last byte in word
	out  *byte          // the last byte of the source
	// starts: this end writes first, and the peer answers. The client starts, except with the
	// programs of perftest.
	starts   bool
	measures bool
	counts   bool // this end measures but does not start: it must see every write
	any      bool // a write of the peer has arrived
	looks    int  // how often memory is polled after each pass
}

// adapterLooks is how often the memory is polled between two passes of the engine if the
// device is an adapter. An adapter writes at any time, a write during a pass is seen only
// after it, and a pass takes a hundred times as long as a look at the memory. A software
// device writes during passes.
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
		b.fewer = 1 // the first write of the peer ends no round trip
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

// strike writes the next count to the peer.
func (b *ball) strike(now time.Time) {
	if !b.f.next().InFlight() {
		*b.out = b.mine // the peer has answered all earlier writes
	}
	b.hit(now)
}

func (b *ball) completed(*flow) {
	if b.due {
		b.strike(time.Now())
	}
}

// look polls the memory for the peer's next count.
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

// seen handles the arrival of the peer's next count.
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
