package session

import (
	"context"
	"time"
)

// Limiter bounds the rate of sending. It belongs to one goroutine.
type Limiter struct {
	rate float64 // bytes per second; zero: no limit
	next time.Time
}

// limitBurst is the time whose unused rate may be made up for, because timers are late.
const limitBurst = 100 * time.Millisecond

// NewLimiter makes a limiter of rate bytes per second. Zero: no limit.
func NewLimiter(rate int64) *Limiter { return &Limiter{rate: float64(rate)} }

// piece returns how much of n bytes to send at a time: as many as the rate allows in 1/20 s, at
// least 4096.
func (l *Limiter) piece(n int) int {
	if l.rate == 0 {
		return n
	}
	return min(n, max(int(l.rate/20), 4096))
}

// wait returns when n more bytes may be sent.
func (l *Limiter) wait(ctx context.Context, n int) error {
	if l.rate == 0 {
		return nil
	}
	now := time.Now()
	if earliest := now.Add(-limitBurst); l.next.Before(earliest) {
		l.next = earliest // unused rate from before then is lost
	}
	delay := l.next.Sub(now)
	l.next = l.next.Add(time.Duration(float64(n) / l.rate * float64(time.Second)))
	if delay <= 0 {
		return nil
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
