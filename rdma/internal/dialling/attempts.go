// Package dialling decides when a peer is dialled: by which of its addresses, how often, for how
// long, and how many dials to one address are under way. It dials nothing itself. Everything runs on
// the engine's goroutine.
package dialling

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/internal/errs"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	firstPause   = time.Millisecond
	longestPause = 250 * time.Millisecond
)

// Attempts are the attempts to reach a host: by each of its addresses in turn, again and
// again, until the time is over.
type Attempts struct {
	Last    error // of the last attempt
	Waiting error // why the attempt under way has not found the peer yet

	host    host.Host
	once    bool
	targets []netip.Addr // to try in turn
	next    int          // index in targets, which lose those that are not worth another attempt
	limit   time.Duration
	until   time.Time     // when to give up; zero: never
	retryAt time.Time     // when to try the next time; zero: an attempt is under way
	pause   time.Duration // before the next attempt
}

// Start begins the time of the attempts; without a positive limit it never ends. With once, each
// address is tried once.
func Start(h host.Host, limit time.Duration, once bool) Attempts {
	a := Attempts{host: h, once: once, pause: firstPause, limit: limit}
	if limit > 0 {
		a.until = h.Now().Add(limit)
	}
	return a
}

// Add adds those addresses of a host that may be reached, and reports whether there are any.
func (a *Attempts) Add(list []netip.Addr, mayReach func(netip.Addr) bool) bool {
	for _, addr := range list {
		if addr = addr.Unmap(); mayReach(addr) && !slices.Contains(a.targets, addr) {
			a.targets = append(a.targets, addr)
		}
	}
	return len(a.targets) > 0
}

// Next starts the next attempt, and returns its address.
func (a *Attempts) Next() netip.Addr {
	target := a.targets[a.next]
	a.next++
	a.retryAt, a.Waiting = time.Time{}, nil
	return target
}

// Repeat makes Next return the same address again.
func (a *Attempts) Repeat() { a.next-- }

// Failed records why an attempt has failed, and whether to try the same address again. It
// reports whether there is to be another attempt.
func (a *Attempts) Failed(err error, again bool) bool {
	// Keep an error that is worth retrying: it says more than that another address is out of
	// reach. A rejection ends the attempts, so it is the reason.
	a.Waiting = nil
	if a.Last == nil || again || !Retryable(a.Last) || errors.Is(err, verbs.ErrRejected) {
		a.Last = err
	}
	if !again { // not this address
		a.next--
		a.targets = slices.Delete(a.targets, a.next, a.next+1)
	}
	return len(a.targets) > 0 && (again || !errors.Is(err, verbs.ErrRejected)) && (!a.once || a.next < len(a.targets))
}

// Others reports whether another address of the host can be tried while this one waits.
func (a *Attempts) Others() bool {
	return a.next < len(a.targets) || !a.once && len(a.targets) > 1
}

// Now reports whether the next attempt is to begin at once: each address is tried once before
// any is tried again. Otherwise Now sets the time of the next attempt.
func (a *Attempts) Now() bool {
	if a.next < len(a.targets) {
		return true
	}
	a.next = 0
	a.retryAt = a.host.Now().Add(a.pause)
	a.pause = min(2*a.pause, longestPause)
	return false
}

// Due reports whether to make another attempt now, or returns the error with which to give up.
func (a *Attempts) Due(now time.Time) (again bool, err error) {
	if !a.until.IsZero() && !now.Before(a.until) {
		err := fmt.Errorf("%w after %v", errs.ErrTimeout, a.limit)
		switch {
		case a.Waiting != nil:
			err = fmt.Errorf("%w: %w", err, a.Waiting)
		case a.Last != nil:
			err = fmt.Errorf("%w: the last attempt failed: %w", err, a.Last)
		}
		return false, err
	}
	return !a.retryAt.IsZero() && !now.Before(a.retryAt), nil
}

// Deadline is when Due is to be called.
func (a *Attempts) Deadline() time.Time {
	if !a.retryAt.IsZero() && (a.until.IsZero() || a.retryAt.Before(a.until)) {
		return a.retryAt
	}
	return a.until
}

// Retryable reports whether another attempt may succeed.
func Retryable(err error) bool {
	var failure *verbs.CMError
	if !errors.As(err, &failure) {
		return false
	}
	switch failure.Reason {
	case verbs.CMRejectNoQP, verbs.CMRejectNoResources, verbs.CMRejectTimeout, verbs.CMRejectInvalidCommID, verbs.CMRejectStaleConnection:
		return true
	}
	return errors.Is(err, verbs.ErrNotListening) || errors.Is(err, verbs.ErrUnreachable)
}
