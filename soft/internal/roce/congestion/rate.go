package congestion

import "time"

// Rate bounds how fast packets leave that nothing acknowledges. There is no bound until a
// notification comes. Then the rate is cut, from what it was just then, and recovers as time
// passes without one: halfway back at first, then beyond in growing steps, until there is no
// bound again. The zero Rate is ready for use.
type Rate struct {
	present  float64 // bytes a second; zero: no bound
	goal     float64 // what it goes back to
	enough   float64 // from which on there is no bound
	fraction float64 // of packets that are marked, about: the α of DCQCN

	stage    int           // steps since the last cut
	stepAt   time.Duration // when the next step is due
	cutAt    time.Duration
	next     time.Duration // when the next packet may leave
	begun    time.Duration // of the present measurement
	bytes    int           // sent since then
	achieved float64       // bytes a second in the last measurement
}

const (
	// rateInterval is the time of a measurement, and between steps of the recovery.
	rateInterval = time.Millisecond
	// cutInterval is the least time between cuts.
	cutInterval = 50 * time.Microsecond
	// idleAfter is how long after the last measurement notifications say nothing any more.
	idleAfter = 10 * time.Millisecond
	// halvings is how many steps go halfway back; later ones add step, 2 × step … to the
	// goal.
	halvings = 5
	step     = 1 << 20 // bytes a second
	// leastRate is what may always leave, in bytes a second.
	leastRate = 512 << 10
	// maxBurst is how much late packets may make up for, in time.
	maxBurst = 100 * time.Microsecond
	// maxSteps is more than any recovery takes.
	maxSteps = 1000
)

// Bounded reports whether there is a bound.
func (r *Rate) Bounded() bool { return r.present > 0 }

// Wait is when the next packet may leave. Zero: now.
func (r *Rate) Wait(now time.Duration) time.Duration {
	if r.present == 0 {
		return 0
	}
	r.recover(now)
	if r.present == 0 || now >= r.next {
		return 0
	}
	return r.next
}

// Sent notes that bytes have left.
func (r *Rate) Sent(bytes int, now time.Duration) {
	if passed := now - r.begun; passed >= rateInterval {
		r.achieved = float64(r.bytes) / passed.Seconds()
		r.begun, r.bytes = now, 0
	}
	r.bytes += bytes
	if r.present > 0 {
		r.next = max(r.next, now-maxBurst) + seconds(float64(bytes)/r.present)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Marked notes a congestion notification, and reports whether it made the rate smaller.
func (r *Rate) Marked(now time.Duration) bool {
	if r.present > 0 {
		r.recover(now)
	}
	if now-r.begun > idleAfter {
		return false // nothing has left that it could be about
	}
	if r.present == 0 {
		passed := max(now-r.begun, rateInterval)
		r.present = max(r.achieved, float64(r.bytes)/passed.Seconds(), leastRate)
		r.enough, r.fraction, r.next = r.present, 1, now
	} else {
		if now < r.cutAt+cutInterval {
			return false
		}
		r.fraction = (1-weight)*r.fraction + weight
	}
	r.goal = r.present
	r.present = max(r.present*(1-r.fraction/2), leastRate)
	r.cutAt, r.stepAt, r.stage = now, now+rateInterval, 0
	return true
}

// recover takes the steps that are due.
func (r *Rate) recover(now time.Duration) {
	for n := 0; now >= r.stepAt; n++ {
		if n == maxSteps {
			r.present = 0
			return
		}
		r.stage++
		r.stepAt += rateInterval
		r.fraction *= 1 - weight
		if r.stage > halvings {
			r.goal += step * float64(r.stage-halvings)
		}
		r.present = (r.present + r.goal) / 2
		if r.present >= r.enough && r.stage > halvings {
			r.present = 0
			return
		}
	}
}
