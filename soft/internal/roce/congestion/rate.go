package congestion

import "time"

// Rate limits packets that nothing acknowledges. There is no limit until a congestion
// notification arrives. A notification cuts the rate at which packets have just been sent. The
// rate recovers while no other notification arrives: halfway back in each of the first steps,
// then further in growing steps, until there is no limit again. The zero Rate is ready for
// use.
type Rate struct {
	current     float64 // bytes a second; zero: no limit
	goal        float64 // the rate that the recovery aims at
	unlimitedAt float64 // at this rate the limit ends
	fraction    float64 // estimated fraction of packets that are marked: the α of DCQCN

	stage    int           // steps since the last cut
	stepAt   time.Duration // when the next step is due
	cutAt    time.Duration
	next     time.Duration // when the next packet may leave
	begun    time.Duration // of the current measurement
	bytes    int           // sent since then
	achieved float64       // bytes a second in the last measurement
}

const (
	// rateInterval is the length of a measurement, and of a step of the recovery.
	rateInterval = time.Millisecond
	// cutInterval is the least time between cuts.
	cutInterval = 50 * time.Microsecond
	// idleAfter is how long after the last measurement notifications are ignored: nothing was
	// sent that they could be about.
	idleAfter = 10 * time.Millisecond
	// halvings is the number of steps that go halfway back to the goal. Later steps also raise
	// the goal, by step, 2 × step and so on.
	halvings = 5
	step     = 1 << 20 // bytes a second
	// leastRate is the lowest rate, in bytes a second.
	leastRate = 512 << 10
	// maxBurst bounds the time that late packets may catch up on.
	maxBurst = 100 * time.Microsecond
	// maxSteps exceeds the number of steps of any recovery.
	maxSteps = 1000
)

// Bounded reports whether the rate is limited.
func (r *Rate) Bounded() bool { return r.current > 0 }

// Wait returns when the next packet may leave; zero means now.
func (r *Rate) Wait(now time.Duration) time.Duration {
	if r.current == 0 {
		return 0
	}
	r.recover(now)
	if r.current == 0 || now >= r.next {
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
	if r.current > 0 {
		r.next = max(r.next, now-maxBurst) + seconds(float64(bytes)/r.current)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Marked notes a congestion notification, and reports whether it reduced the rate.
func (r *Rate) Marked(now time.Duration) bool {
	if r.current > 0 {
		r.recover(now)
	}
	if now-r.begun > idleAfter {
		return false // nothing was sent that the notification could be about
	}
	if r.current == 0 {
		passed := max(now-r.begun, rateInterval)
		r.current = max(r.achieved, float64(r.bytes)/passed.Seconds(), leastRate)
		r.unlimitedAt, r.fraction, r.next = r.current, 1, now
	} else {
		if now < r.cutAt+cutInterval {
			return false
		}
		r.fraction = (1-dcqcnWeight)*r.fraction + dcqcnWeight
	}
	r.goal = r.current
	r.current = max(r.current*(1-r.fraction/2), leastRate)
	r.cutAt, r.stepAt, r.stage = now, now+rateInterval, 0
	return true
}

// recover takes the steps that are due.
func (r *Rate) recover(now time.Duration) {
	for n := 0; now >= r.stepAt; n++ {
		if n == maxSteps {
			r.current = 0
			return
		}
		r.stage++
		r.stepAt += rateInterval
		r.fraction *= 1 - dcqcnWeight
		if r.stage > halvings {
			r.goal += step * float64(r.stage-halvings)
		}
		r.current = (r.current + r.goal) / 2
		if r.current >= r.unlimitedAt && r.stage > halvings {
			r.current = 0
			return
		}
	}
}
