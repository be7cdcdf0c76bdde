// Package host has what a program takes from the machine that its device belongs to: time,
// random numbers, goroutines. For most devices that is the system. A simulated device has a host
// of its own, which decides these from a seed (package soft/sim).
package host

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Host is the machine of a device. Its methods may be called from any goroutine.
type Host interface {
	Now() time.Time
	// Until is how long it is until a time of the clock that programs see. In a simulation, that one jumps.
	Until(t time.Time) time.Duration
	// AfterFunc calls f, on a goroutine of the host's, after d. f does not block.
	AfterFunc(d time.Duration, f func()) Timer
	// Random fills b with random bytes.
	Random(b []byte)
	// Go calls f on another goroutine.
	Go(f func())
	// Scheduler decides when goroutines go on; nil: the Go runtime does.
	Scheduler() Scheduler
}

// Timer is a timer of a Host, as [time.Timer] is one of the system.
type Timer interface {
	Reset(d time.Duration) bool
	Stop() bool
}

// Scheduler lets one goroutine of a simulation go on at a time. Two hosts of one simulation
// have different schedulers, of the same Simulation.
type Scheduler interface {
	// Ticket draws a place among the goroutines that call Turn at the same time. The caller has
	// its turn.
	Ticket() uint64
	// Turn returns when all goroutines wait, and it is the caller's turn.
	Turn(ticket uint64)
	// Yield is for the goroutine whose turn it is. It returns when all other goroutines wait.
	Yield()
	// Wake calls f, which does not block, when all goroutines wait and it is its turn.
	Wake(f func())
	// Idle is called by a goroutine that polls and has found nothing. It returns when
	// something has happened at the host, or some time has passed.
	Idle()
	// Report adds something to the report on what the host waits for, until remove is called.
	// Its String has a line for each thing.
	Report(what fmt.Stringer) (remove func())
	// Simulation identifies the simulation.
	Simulation() any
}

// Sleeper is a part of a device at which a goroutine can sleep: packets wake it with no other
// goroutine between. It does the work of that part meanwhile: it receives packets, answers them,
// and repeats what was lost.
type Sleeper interface {
	// Sleep returns true after ended was set. Whoever sets it calls Wake after that, or is a function
	// that the device has called in Sleep. The goroutine then polls the device or calls Sleep again
	// soon: the device's own goroutine takes over only after one to two milliseconds. Sleep returns
	// false, perhaps at once, if it cannot wait here: another goroutine does, or the device is closed
	// or has failed.
	Sleep(ended *atomic.Bool) bool
	Wake()
	// Leave says that no call of Sleep follows: the device's own goroutine takes over at once.
	Leave()
}

// Await waits for a value of c, and returns false if ctx ends before that. In a simulation, what
// is reported as waiting is what, unless it is nil, and a goroutine whose wait ctx has ended goes on
// in its turn: others may have been woken with it. s may be nil.
func Await[T any](ctx context.Context, s Scheduler, what fmt.Stringer, c <-chan T) (v T, ok bool) {
	var ticket uint64
	if s != nil {
		if what != nil {
			defer s.Report(what)()
		}
		ticket = s.Ticket()
	}
	select {
	case v = <-c:
		return v, true
	case <-ctx.Done():
	}
	if s != nil {
		s.Turn(ticket)
	}
	select {
	case v = <-c: // it came first
		return v, true
	default:
		return v, false
	}
}

// Outside calls f, which waits for something that no simulation decides. In one, the goroutine goes
// on in its turn after that, and is reported as what. s may be nil.
func Outside(s Scheduler, what fmt.Stringer, f func()) {
	if s == nil {
		f()
		return
	}
	ticket, noted := s.Ticket(), s.Report(what)
	f()
	noted()
	s.Turn(ticket)
}

// Of returns the host of a device.
func Of(device any) Host {
	if d, ok := device.(interface{ Host() Host }); ok {
		return d.Host()
	}
	return System
}

// Go calls f on another goroutine, which the group counts.
func Go(h Host, group *sync.WaitGroup, f func()) {
	group.Add(1)
	h.Go(func() {
		defer group.Done()
		f()
	})
}

// Wait is cond.Wait. In a simulation, the goroutines that are woken together go on one by one.
func Wait(h Host, cond *sync.Cond) {
	s := h.Scheduler()
	if s == nil {
		cond.Wait()
		return
	}
	ticket := s.Ticket()
	cond.Wait()
	cond.L.Unlock()
	s.Turn(ticket)
	cond.L.Lock()
}

// WithTimeout is [context.WithTimeout] by the clock of the host. When the time is over, the cause
// of the context's end is [context.DeadlineExceeded], but its Err is [context.Canceled].
func WithTimeout(parent context.Context, h Host, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	timer := h.AfterFunc(d, func() { cancel(context.DeadlineExceeded) })
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}
}

// Uint32 returns a random number of the host.
func Uint32(h Host) uint32 {
	var b [4]byte
	h.Random(b[:])
	return binary.NativeEndian.Uint32(b[:])
}

// Uint64 returns a random number of the host.
func Uint64(h Host) uint64 {
	var b [8]byte
	h.Random(b[:])
	return binary.NativeEndian.Uint64(b[:])
}

// System is the machine that the program runs on.
var System Host = system{}

type system struct{}

func (system) Now() time.Time { return time.Now() }

func (system) Until(t time.Time) time.Duration { return time.Until(t) }

func (system) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// Random never fails: crypto/rand ends the program instead.
func (system) Random(b []byte) { _, _ = rand.Read(b) }

func (system) Go(f func()) { go f() }

func (system) Scheduler() Scheduler { return nil }
