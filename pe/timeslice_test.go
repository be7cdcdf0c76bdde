package pe

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// simulatedSlice is a time slice on a clock that the test sets.
type simulatedSlice struct {
	timeslice
	now time.Duration
}

// run makes passes until a look at the clock is due, each of which takes d, and
// reports whether the engine yields then.
func (p *simulatedSlice) run(handled int, d time.Duration) bool {
	for !p.checkDue() {
		p.endPass(handled)
		p.now += d
	}
	p.passBegin = p.now
	p.now += d
	p.passes++
	return p.over(p.now)
}

func newSimulatedSlice() *simulatedSlice {
	p := &simulatedSlice{now: 1000 * time.Second}
	p.resume(p.now, p.now)
	return p
}

func TestClockIsReadByWeight(t *testing.T) {
	for handled, passes := range map[int]int{0: 64, 1: 8, 3: 3, 100: 1} {
		p := newSimulatedSlice()
		p.run(handled, time.Microsecond)
		assert.Equal(t, time.Duration(passes+1)*time.Microsecond, p.now-1000*time.Second, "passes that handle %d", handled)
	}
}

// An engine yields after a millisecond, long before the runtime takes the
// processor from it, however long its passes take.
func TestEngineYields(t *testing.T) {
	for _, pass := range []time.Duration{time.Nanosecond, time.Microsecond, 100 * time.Microsecond, 20 * time.Millisecond} {
		p := newSimulatedSlice()
		begin := p.now
		for !p.run(0, pass) {
			assert.Less(t, p.now-begin, minSlice, "passes of %v", pass)
		}
		assert.GreaterOrEqual(t, p.now-begin, minSlice)
		assert.Less(t, p.now-begin, minSlice+66*pass)
	}
}

// It does so too if the passes with events take long, and the one that is timed has none.
func TestBusyEngineYields(t *testing.T) {
	for _, pass := range []time.Duration{time.Microsecond, 100 * time.Microsecond, 500 * time.Microsecond} {
		p := newSimulatedSlice()
		begin := p.now
		for {
			for !p.checkDue() {
				p.endPass(1)
				p.now += pass
			}
			p.passBegin = p.now
			p.now += 100 * time.Nanosecond
			p.passes++
			if p.over(p.now) {
				break
			}
			assert.Less(t, p.now-begin, minSlice+10*pass, "passes of %v", pass)
		}
	}
}

// An engine that comes back keeps the processor for as long as others had it: if it
// yielded each millisecond, it would get a tenth beside one that does not.
func TestEngineKeepsItsShare(t *testing.T) {
	p := newSimulatedSlice()
	for _, others := range []time.Duration{10 * time.Millisecond, 30 * time.Millisecond, 0} {
		for !p.run(0, time.Microsecond) {
		}
		left := p.now
		p.now += others
		p.resume(left, p.now)
		begin := p.now
		for !p.run(0, time.Microsecond) {
		}
		assert.InDelta(t, max(others, minSlice), p.now-begin, float64(70*time.Microsecond))
		p.resume(p.now, p.now)
	}
}

// An engine that has just slept, or had lost the processor, does not yield.
func TestEngineThatSleptKeepsTheProcessor(t *testing.T) {
	p := newSimulatedSlice()
	for range 10 {
		p.now += 2 * longestExpected // no passes account for it
		for range 10 {
			assert.False(t, p.run(0, time.Microsecond))
		}
	}
}
