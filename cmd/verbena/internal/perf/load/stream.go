package load

import (
	"math"
	"time"

	"github.com/verbena-rdma/verbena/internal/processor"
	"github.com/verbena-rdma/verbena/pe"
)

// streamLoad keeps many requests in flight on each connection: the load of bandwidth tests.
type streamLoad struct {
	w       *worker
	deliver func(*Sample)
	sample  Sample

	phase   phase
	begun   time.Time
	n       int64 // completed
	posted  int64
	look    int64 // the value of n at which to read the clock next
	stride  int64 // completions between two readings of the clock
	slice   time.Time
	slicedN int64
	fromN   int64
}

type phase int

const (
	warming phase = iota
	measuring
	draining
)

// peakSlice is the shortest interval over which the peak rate is computed.
const peakSlice = time.Millisecond

func newStream(w *worker) *streamLoad {
	s := &streamLoad{w: w, stride: 64}
	if w.size >= 4096 {
		s.stride = 1
	}
	return s
}

func (s *streamLoad) begin(deliver func(*Sample)) {
	s.deliver, s.begun = deliver, time.Now()
	for _, f := range s.w.flows {
		f.limit = math.MaxInt64
	}
	if s.w.plan.WarmUp == 0 {
		s.mark(s.begun)
	}
	for _, f := range s.w.flows {
		s.refill(f)
	}
}

// refill posts as many batches as fit into the depth.
func (s *streamLoad) refill(f *flow) {
	p := s.w.plan
	depth, batch, moderation := int64(p.Depth), p.Batch, int64(p.Moderation)
	for f.posted < f.limit && depth-(f.posted-f.completed) >= int64(batch) {
		for i := range batch {
			t := f.next()
			var flags pe.SubmitFlags
			if i < batch-1 {
				flags = pe.Aggregate
			}
			if (f.posted+1)%moderation != 0 && f.posted+1 != f.limit {
				flags |= pe.OptimizeReports
			}
			if !s.w.submit(t, flags) {
				return
			}
			f.posted++
			s.posted++
		}
	}
}

func (s *streamLoad) completed(f *flow) {
	s.n++
	if s.n >= s.look && s.phase != draining {
		s.clock()
	}
	s.refill(f)
	if s.n == s.posted && !s.w.failed { // every flow is at its limit
		if s.phase == measuring {
			s.end(time.Now())
		}
		s.deliver(&s.sample)
	}
}

func (s *streamLoad) arrived() {}

// clock reads the clock, and starts the next phase if it is due.
func (s *streamLoad) clock() {
	s.look = s.n + s.stride
	now := time.Now()
	if s.phase == warming {
		if now.Sub(s.begun) >= s.w.plan.WarmUp {
			s.mark(now)
		}
		return
	}
	if d := now.Sub(s.slice); d >= peakSlice {
		s.sample.Peak = max(s.sample.Peak, float64(s.n-s.slicedN)/d.Seconds())
		s.slice, s.slicedN = now, s.n
	}
	if d := s.w.plan.Duration; d > 0 && now.Sub(s.sample.From) >= d {
		s.end(now)
		for _, f := range s.w.flows {
			f.limit = s.atLeastAll(f.posted)
		}
	}
}

// mark ends the warm-up, and starts the measurement.
func (s *streamLoad) mark(now time.Time) {
	s.phase, s.fromN = measuring, s.n
	s.slice, s.slicedN = now, s.n
	s.sample.From, s.sample.fromCPU = now, processor.Time()
	if n := s.w.plan.Iterations; n > 0 {
		batch := int64(s.w.plan.Batch)
		for _, f := range s.w.flows {
			// The warm-up may have posted more than that already.
			f.limit = s.atLeastAll(max(f.posted, (f.completed+n+batch-1)/batch*batch))
		}
	}
}

// atLeastAll raises a limit if data is verified, so that each slot is used.
func (s *streamLoad) atLeastAll(limit int64) int64 {
	if s.w.plan.Verify {
		limit = max(limit, int64(s.w.plan.Depth))
	}
	return limit
}

// end ends the measurement.
func (s *streamLoad) end(now time.Time) {
	s.phase = draining
	s.sample.To, s.sample.toCPU = now, processor.Time()
	s.sample.Operations = s.n - s.fromN
	s.sample.Peak = max(s.sample.Peak, s.sample.Rate())
}
