package pe

import (
	"runtime"
	"time"
)

// From a goroutine that has run for 10 ms the Go runtime takes the processor by
// force, and its monitor stays busy for milliseconds after that. A polling program
// feels it in one message of twenty; so the engine gives way by itself in time.
const (
	shortestTurn = time.Millisecond
	// The clock is looked at after this many passes with nothing to do. One that
	// handles something counts for several: it may take long.
	passesPerLook = 64
	handledWeight = 16
	// A longer time between two looks, of which passes do not account for a quarter,
	// was spent asleep or without the processor.
	longestAway = 5 * time.Millisecond
)

// turn is the time for which the engine keeps the processor.
type turn struct {
	weight  int // of the passes since the last look at the clock
	passes  int // the same passes
	start   time.Time
	looked  time.Time
	began   time.Time
	granted time.Duration
}

// due reports whether the pass is timed, and ends with a look.
func (t *turn) due() bool { return t.weight >= passesPerLook }

// begin is called before each pass.
func (t *turn) begin() {
	if t.due() {
		t.start = time.Now()
	}
}

// end is called after each pass, with how many events it handled. It gives way where
// it is time.
func (t *turn) end(handled int) {
	t.passes++
	if !t.due() {
		if t.weight++; handled > 0 {
			t.weight += handledWeight - 1
		}
		return
	}
	if now := time.Now(); t.over(now) {
		runtime.Gosched()
		t.resume(now, time.Now())
	}
}

// over reports whether it is time to give way.
func (t *turn) over(now time.Time) bool {
	away := now.Sub(t.looked)
	if away > longestAway && away > 4*time.Duration(t.passes)*now.Sub(t.start) {
		t.began = now
	}
	t.looked, t.passes, t.weight = now, 0, 0
	return now.Sub(t.began) >= max(t.granted, shortestTurn)
}

// resume begins to count again. The engine may keep the processor for as long as
// others just did, who keep it until the runtime takes it from them.
func (t *turn) resume(left, back time.Time) {
	t.began, t.looked, t.granted = back, back, back.Sub(left)
}
