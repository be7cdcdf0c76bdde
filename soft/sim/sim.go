package sim

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/internal/goroutine"
	"github.com/verbena-rdma/verbena/soft/internal/fabric"
	"github.com/verbena-rdma/verbena/soft/internal/inorder"
)

// Errors of simulated hosts, matched with [errors.Is].
var (
	// ErrCrashed: the host has crashed. Calls on its device return it, except those that close
	// objects, and it is the cause of the end of its program's context.
	ErrCrashed = errors.New("the simulated host has crashed")
	// ErrEnded: the simulation is over. It is the cause of the end of a program's context.
	ErrEnded = errors.New("the simulation has ended")
)

// Sim is a simulation. It is the test that it runs in, too: s.Errorf makes the test fail, and
// require.NoError(s, err) ends it. Its methods may be called by the goroutine of the test and in
// functions given to At, After and RunUntil; Run and RunUntil only by the former, and Now and
// those that report failures by programs too.
type Sim struct {
	testing.TB
	seed    uint64
	virtual bool      // in a bubble of testing/synctest
	begin   time.Time // time zero
	driver  goroutine.ID
	trace   *trace

	timer *time.Timer   // wakes the driver
	done  chan struct{} // the driver has ended, and no event happens any more
	spare []chan struct{}
	// waits: a goroutine is in synctest.Wait, which one at a time may call. blocked: the driver
	// wants to, and receives from waitOver.
	waits, blocked atomic.Bool
	waitOver       chan struct{}

	mu         sync.Mutex
	queue      fabric.Queue[event]
	busy       bool          // the driver has let a goroutine go on since it slept; used by the driver
	now        time.Duration // while the driver is awake; the system's clock may be some nanoseconds away
	asleep     bool          // the driver sleeps
	sleptAt    time.Duration // on the system's clock, when the driver fell asleep
	sleepUntil time.Duration // of the driver, while it is asleep
	random     *rand.Rand    // for what belongs to no host
	forTest    *rand.Rand
	hosts      []*Host
	byAddr     map[netip.Addr]*Host
	topology   topology
	addresses  addressTable
	buffers    bufferPool
	conditions []*condition
	longPolls  []*waiter     // goroutines whose polls take longer than maxPollLag
	activeAt   time.Duration // when something other than the end of a poll has happened last
	failed     bool
	ending     bool // programs are to return
	ended      bool // the driver is to return
	events     uint64
	packets    uint64
	nemeses    uint64
	reached    map[string]int // how often the condition of each Sometimes was true
	schedule   Schedule       // of the faults so far
	replays    bool           // replay, in place of faults that the seed draws
	replay     Schedule

	order *inorder.Order // nil: goroutines run as the runtime likes
}

// event is something that happens at a time.
type event struct {
	kind   eventKind
	host   *Host // at which it happens; nil: at none
	packet *packet
	port   *port
	call   func()
}

// place is a number of the host at which it happens.
func (e *event) place() uint64 {
	if e.host == nil {
		return 0
	}
	return uint64(e.host.index)
}

type eventKind uint8

const (
	eventCall    eventKind = iota // call a function of the program's or of the simulation's
	eventPacket                   // a packet arrives at a host
	eventHop                      // a packet arrives at a switch
	eventRefused                  // a packet was refused by its destination's host
	eventTimer                    // a device has work
	eventPoll                     // a goroutine that polls goes on
	eventFault                    // a Nemesis does something
)

var eventNames = [...]string{"call", "packet", "hop", "refused", "timer", "poll", "fault"}

// New starts a simulation that ends with the test. In a bubble of testing/synctest
// ([synctest.Test]) its time is virtual, and what happens depends on the seed alone; outside,
// it runs in real time. [Check] does what most tests need; it also reports goroutines that are left
// at the end, where synctest.Test panics.
func New(t testing.TB, seed uint64) *Sim {
	s := &Sim{
		TB: t, seed: seed, virtual: inBubble(), begin: time.Now(),
		timer: time.NewTimer(0), done: make(chan struct{}), waitOver: make(chan struct{}, 1),
		random: rand.New(rand.NewPCG(seed, 0)), forTest: rand.New(rand.NewPCG(seed, 1)), byAddr: make(map[netip.Addr]*Host),
		busy: true, // the goroutine of the test goes on first
	}
	s.topology.init(s)
	s.addresses.init()
	s.trace = newTrace(s)
	ready := make(chan struct{})
	go func() {
		defer close(s.done)
		s.driver = goroutine.Current()
		close(ready)
		s.drive()
	}()
	<-ready
	t.Cleanup(s.close)
	return s
}

// inBubble reports whether the caller is in a bubble of testing/synctest.
func inBubble() (in bool) {
	defer func() {
		if recover() != nil { // Wait panics outside a bubble
			in = false
		}
	}()
	synctest.Wait()
	return true
}

// Seed is the seed of the simulation.
func (s *Sim) Seed() uint64 { return s.seed }

// Rand is a source of random numbers from the seed, for the test. It is not for the programs
// of hosts: use Host.Rand there, so that each host has its own.
func (s *Sim) Rand() *rand.Rand { return s.forTest }

// Now is how much time has passed in the simulation.
func (s *Sim) Now() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.elapsed()
}

// elapsed is Now. The lock is held. The system's clock counts only where it has gone on while the driver
// sleeps, and no further than the driver sleeps: how often it sleeps for a nanosecond, to let others
// wait, does not follow from the seed.
func (s *Sim) elapsed() time.Duration {
	if s.virtual && !s.asleep {
		return s.now
	}
	switch t := time.Since(s.begin); {
	case !s.virtual:
		s.now = max(s.now, t)
	case t > s.sleptAt:
		s.now = max(s.now, min(t, s.sleepUntil))
	}
	return s.now
}

// granularity is by how much the system's clock may be behind the simulation's. Events that
// are less than that apart are given out without letting the system's clock go on between
// them, which takes longer than most events.
const granularity = 50 * time.Nanosecond

// At calls f when that much time has passed since the beginning, while all goroutines wait. f
// must not block.
func (s *Sim) At(at time.Duration, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.push(max(at, s.elapsed()), s.random.Uint64(), event{call: f})
}

// After is At, counted from now.
func (s *Sim) After(d time.Duration, f func()) { s.At(s.Now()+d, f) }

// push adds an event. The lock is held.
func (s *Sim) push(at time.Duration, order uint64, e event) {
	s.queue.Push(at, order, e)
	if s.asleep && at < s.sleepUntil {
		s.wakeAt(at)
	}
}

// wakeAt makes the driver wake at that time, when all goroutines wait. The lock is held.
func (s *Sim) wakeAt(at time.Duration) {
	s.sleepUntil = at
	// A timer that is due already would not let the driver wait.
	s.timer.Reset(max(at-time.Since(s.begin), 1))
}

// beginWait reports whether the caller may call synctest.Wait, and endWait afterwards.
func (s *Sim) beginWait() bool { return s.waits.CompareAndSwap(false, true) }

func (s *Sim) endWait() {
	s.waits.Store(false)
	if s.blocked.Swap(false) {
		select {
		case s.waitOver <- struct{}{}:
		default: // the driver has not needed the last one: it was first
		}
	}
}

// drive gives out the events, one at a time, each when all goroutines wait.
func (s *Sim) drive() {
	defer s.timer.Stop()
	for s.step() {
	}
}

// step gives out an event, or waits until one is due. It returns false when the simulation has
// ended.
func (s *Sim) step() bool {
	s.settle()
	s.mu.Lock()
	if s.checkConditions() {
		s.mu.Unlock()
		s.busy = true // the goroutine that waited goes on
		return true
	}
	if s.ended {
		s.mu.Unlock()
		return false
	}
	next := time.Duration(math.MaxInt64)
	if s.queue.Len() > 0 {
		next = s.queue.Next()
	}
	if next > time.Since(s.begin)+granularity {
		s.mu.Unlock()
		s.sleep()
		return true
	}
	s.now = max(s.elapsed(), next)
	now := s.now
	e := s.queue.Pop()
	if e.host != nil && e.host.hold(&e) {
		s.mu.Unlock()
		return true
	}
	s.events++
	s.trace.event(now, &e)
	if e.kind != eventPoll && e.kind != eventFault {
		s.endLongPolls()
	}
	s.mu.Unlock()
	if s.order != nil {
		s.order.Seed(s.seed, uint64(now), e.place())
	}
	s.give(&e, now)
	s.trace.look()
	return true
}

// settle returns when all other goroutines wait. While one of them may have its turn, the
// driver sleeps, and leaves synctest.Wait to it.
func (s *Sim) settle() {
	if !s.virtual {
		return
	}
	for {
		if s.busy {
			s.sleep()
		}
		s.blocked.Store(true)
		if s.beginWait() {
			s.blocked.Store(false)
			synctest.Wait()
			s.waits.Store(false)
			return
		}
		<-s.waitOver
		s.busy = true // the goroutine that was in synctest.Wait goes on
	}
}

// sleep waits until the next event is due. In a bubble it also waits until all goroutines
// wait, and so it does where an event is due already.
func (s *Sim) sleep() {
	s.mu.Lock()
	next := time.Duration(math.MaxInt64)
	if s.queue.Len() > 0 {
		next = s.queue.Next()
	}
	if s.busy && slices.ContainsFunc(s.conditions, func(c *condition) bool { return c.holds != nil }) {
		next = min(next, s.elapsed()+checkInterval)
	}
	s.asleep, s.sleptAt = true, time.Since(s.begin)
	s.wakeAt(next)
	s.mu.Unlock()
	<-s.timer.C
	s.mu.Lock()
	s.elapsed()
	s.asleep = false
	s.mu.Unlock()
	s.busy = false
}

// give lets an event happen.
func (s *Sim) give(e *event, now time.Duration) {
	switch e.kind {
	case eventCall, eventPoll, eventFault:
		s.busy = true
		s.call(e.call)
	case eventPacket:
		e.host.arrive(e.packet)
	case eventHop:
		s.mu.Lock()
		s.topology.forward(e.packet)
		s.mu.Unlock()
	case eventRefused:
		e.port.refused(e.packet)
	case eventTimer:
		e.port.expire(now)
	}
}

// condition is what a RunUntil waits for.
type condition struct {
	holds func() bool // nil: only the time
	met   bool
	over  bool // the limit is reached
	ended chan struct{}
}

// checkConditions ends the waiting for conditions that hold, and reports whether there were
// any. All goroutines wait. The lock is held.
func (s *Sim) checkConditions() (met bool) {
	for i := 0; i < len(s.conditions); {
		c := s.conditions[i]
		if c.holds != nil && !s.failed {
			s.evaluate(c)
		}
		if !c.met && !s.failed && !c.over {
			i++
			continue
		}
		s.conditions = slices.Delete(s.conditions, i, i+1)
		close(c.ended)
		met = true
	}
	return met
}

// evaluate finds out whether a condition holds. The lock is held, but not meanwhile.
func (s *Sim) evaluate(c *condition) {
	s.mu.Unlock()
	defer s.mu.Lock()
	s.call(func() { c.met = c.holds() })
}

// check is checkConditions as an event.
func (s *Sim) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checkConditions()
}

// wait waits until the condition holds, or the simulation has failed, or the limit is reached.
func (s *Sim) wait(holds func() bool, limit time.Duration) (met bool) {
	c := &condition{holds: holds, ended: make(chan struct{})}
	s.mu.Lock()
	s.conditions = append(s.conditions, c)
	s.push(max(limit, s.elapsed()), math.MaxUint64, event{call: func() { // after all others at that time
		c.over = true
		s.check()
	}})
	s.push(s.elapsed(), s.random.Uint64(), event{call: s.check})
	s.mu.Unlock()
	<-c.ended
	return c.met
}

// waitOrFail is wait. It ends the test if the simulation has failed, or a program has skipped it.
func (s *Sim) waitOrFail(holds func() bool, limit time.Duration) (met bool) {
	s.TB.Helper()
	met = s.wait(holds, limit)
	s.mu.Lock()
	failed := s.failed
	s.mu.Unlock()
	if failed {
		if s.skipped() {
			s.TB.SkipNow()
		}
		s.TB.FailNow()
	}
	return met
}

// Run lets the simulation run for that long. If a host fails meanwhile, it ends the test.
func (s *Sim) Run(d time.Duration) {
	s.TB.Helper()
	s.waitOrFail(nil, s.Now()+d)
}

// checkInterval is how long after the last event a condition may be checked.
const checkInterval = 10 * time.Microsecond

// RunUntil lets the simulation run until the condition holds. The condition is checked before
// the next event or 10 µs after the last one, while all goroutines wait. If it does not hold
// after that much time of the simulation, or a host fails, the test ends, and its output lists
// what each host waits for.
func (s *Sim) RunUntil(holds func() bool, limit time.Duration) {
	s.TB.Helper()
	if s.waitOrFail(holds, s.Now()+limit) {
		return
	}
	s.mu.Lock()
	report := s.report()
	s.mu.Unlock()
	s.TB.Fatalf("sim: the condition does not hold after %v of simulated time:\n%s", s.Now(), report)
}

// fail makes the test fail and Run return.
func (s *Sim) fail(format string, args ...any) {
	s.TB.Errorf(format, args...)
	s.endRun()
}

// endRun makes Run and RunUntil end the test, unless the test has ended.
func (s *Sim) endRun() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ending {
		s.failed = true
		s.push(s.elapsed(), s.random.Uint64(), event{call: s.check})
	}
}

// report lists what each host waits for. The lock is held, and all goroutines wait.
func (s *Sim) report() string {
	var b strings.Builder
	for _, h := range s.hosts {
		fmt.Fprintf(&b, "  host %s: %s\n", h.name, h.condition())
		for _, w := range h.reports {
			for line := range strings.Lines((*w).String()) {
				fmt.Fprintf(&b, "    %s\n", strings.TrimSuffix(line, "\n"))
			}
		}
	}
	fmt.Fprintf(&b, "  %d events are left", s.queue.Len())
	return b.String()
}

// endTimeout is how long programs have to return after the test, in simulated time.
const endTimeout = 10 * time.Minute

// close ends the programs and the simulation.
func (s *Sim) close() {
	s.mu.Lock()
	s.ending = true
	for _, h := range s.hosts {
		h.endProgram(ErrEnded)
	}
	s.failed = false
	s.mu.Unlock()
	if !s.wait(s.finished, s.Now()+endTimeout) {
		s.mu.Lock()
		report := s.report()
		s.mu.Unlock()
		s.TB.Errorf("sim: programs do not return %v after their context has ended:\n%s", endTimeout, report)
	}
	for _, h := range s.hosts {
		if err := h.closeDevice(); err != nil && !s.TB.Failed() {
			s.TB.Errorf("sim: host %s: %v", h.name, err)
		}
	}
	s.mu.Lock()
	s.ended = true
	s.push(s.elapsed(), 0, event{call: func() {}})
	s.mu.Unlock()
	<-s.done
	s.trace.close()
}

// finished reports whether all programs have returned, no goroutine of a host waits for its turn or
// for time to pass, and nothing else is due.
func (s *Sim) finished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	works := func(h *Host) bool { return h.running || len(h.waiters) > 0 }
	return !slices.ContainsFunc(s.hosts, works) && (s.queue.Len() == 0 || s.queue.Next() > s.now)
}

// Digest is a digest of all events so far. Runs of one seed have the same digests.
func (s *Sim) Digest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trace.digest
}

// Events is the number of events so far.
func (s *Sim) Events() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events
}

// Packets is the number of packets that hosts have sent.
func (s *Sim) Packets() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.packets
}

// channel returns a channel for a goroutine that waits for its turn. The lock is held.
func (s *Sim) channel() chan struct{} {
	if n := len(s.spare); n > 0 {
		c := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return c
	}
	return make(chan struct{}, 1)
}
