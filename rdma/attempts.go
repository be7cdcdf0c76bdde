package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	firstDialPause   = time.Millisecond
	longestDialPause = 250 * time.Millisecond
)

// attempts are the attempts to reach a host: by each of its addresses in turn, again and
// again, until the time is over.
type attempts struct {
	host    host.Host
	once    bool
	targets []netip.Addr // to try in turn
	next    int          // index in targets, which lose those that are not worth another attempt
	limit   time.Duration
	until   time.Time     // when to give up; zero: never
	retryAt time.Time     // when to try the next time; zero: an attempt is under way
	pause   time.Duration // before the next attempt
	last    error         // of the last attempt
	waiting error         // why the attempt under way has not found the peer yet
}

// newAttempts starts the time-out of the configuration, or the context's.
func newAttempts(cfg *DialConfig, c *parts) attempts {
	a := attempts{host: c.host, once: cfg.Once, pause: firstDialPause, limit: cfg.Timeout}
	if a.limit == 0 {
		a.limit = c.set.ConnectTimeout
	}
	if a.limit > 0 {
		a.until = a.host.Now().Add(min(a.limit, longestTimeout))
	}
	return a
}

// add adds those addresses of a host that may be reached.
func (a *attempts) add(list []netip.Addr, mayReach func(netip.Addr) bool) {
	for _, addr := range list {
		if addr = addr.Unmap(); mayReach(addr) && !slices.Contains(a.targets, addr) {
			a.targets = append(a.targets, addr)
		}
	}
}

// nextTarget starts the next attempt, and returns its address.
func (a *attempts) nextTarget() netip.Addr {
	target := a.targets[a.next]
	a.next++
	a.retryAt, a.waiting = time.Time{}, nil
	return target
}

// repeat makes nextTarget return the same address again.
func (a *attempts) repeat() { a.next-- }

// failed records why an attempt has failed, and whether to try the same address again. It
// reports whether there is to be another attempt.
func (a *attempts) failed(err error, again bool) bool {
	// Keep an error that is worth retrying: it says more than that another address is out of
	// reach. A rejection ends the attempts, so it is the reason.
	a.waiting = nil
	if a.last == nil || again || !retryable(a.last) || errors.Is(err, ErrRejected) {
		a.last = err
	}
	if !again { // not this address
		a.next--
		a.targets = slices.Delete(a.targets, a.next, a.next+1)
	}
	return len(a.targets) > 0 && (again || !errors.Is(err, ErrRejected)) && (!a.once || a.next < len(a.targets))
}

// others reports whether another address of the host can be tried while this one waits.
func (a *attempts) others() bool {
	return a.next < len(a.targets) || !a.once && len(a.targets) > 1
}

// now reports whether the next attempt is to begin at once: each address is tried once before
// any is tried again. Otherwise now sets the time of the next attempt.
func (a *attempts) now() bool {
	if a.next < len(a.targets) {
		return true
	}
	a.next = 0
	a.retryAt = a.host.Now().Add(a.pause)
	a.pause = min(2*a.pause, longestDialPause)
	return false
}

// due reports whether to make another attempt now, or returns the error with which to give up.
func (a *attempts) due(now time.Time) (again bool, err error) {
	if !a.until.IsZero() && !now.Before(a.until) {
		err := fmt.Errorf("%w after %v", ErrTimeout, a.limit)
		switch {
		case a.waiting != nil:
			err = fmt.Errorf("%w: %w", err, a.waiting)
		case a.last != nil:
			err = fmt.Errorf("%w: the last attempt failed: %w", err, a.last)
		}
		return false, err
	}
	return !a.retryAt.IsZero() && !now.Before(a.retryAt), nil
}

// deadline is when due is to be called.
func (a *attempts) deadline() time.Time {
	if !a.retryAt.IsZero() && (a.until.IsZero() || a.retryAt.Before(a.until)) {
		return a.retryAt
	}
	return a.until
}

// retryable reports whether another attempt may succeed.
func retryable(err error) bool {
	var failure *verbs.CMError
	if !errors.As(err, &failure) {
		return false
	}
	switch failure.Reason {
	case verbs.CMRejectNoQP, verbs.CMRejectNoResources, verbs.CMRejectTimeout, verbs.CMRejectInvalidCommID, verbs.CMRejectStaleConnection:
		return true
	}
	return errors.Is(err, ErrNotListening) || errors.Is(err, ErrUnreachable)
}
