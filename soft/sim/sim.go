package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/internal/goroutine"
	"github.com/verbena-rdma/verbena/soft/internal/fabric"
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
// require.NoError(s, err) ends it. Its methods may be called by the goroutine of the test and in functions
// given to At, After and RunUntil; Run and RunUntil only by the former.
type Sim struct {
	testing.TB
	seed    uint64
	virtual bool      // in a bubble of testing/synctest
	begin   time.Time // time zero
	driver  goroutine.ID
	trace   *trace

	kick  chan struct{} // there is an event earlier than the one that the driver waits for
	done  chan struct{} // the driver has ended
	spare []chan struct{}

	mu         sync.Mutex
	queue      fabric.Queue[event]
	sleepUntil time.Duration // of the driver; zero: it does not sleep
	random     *rand.Rand    // for what belongs to no host
	forTest    *rand.Rand
	hosts      []*Host
	byAddr     map[netip.Addr]*Host
	topology   topology
	addresses  addressTable
	buffers    bufferPool
	conditions []*condition
	failed     bool
	ending     bool // programs are to return
	ended      bool // the driver is to return
	events     uint64
	packets    uint64
	nemeses    uint64
}

// event is something that happens at a time.
type event struct {
	kind   eventKind
	host   *Host // at which it happens; nil: at none
	packet *packet
	port   *port
	link   *Link
	call   func()
}

type eventKind uint8

const (
	eventCall    eventKind = iota // call a function of the program's or of the simulation's
	eventPacket                   // a packet arrives at a host
	eventHop                      // a packet arrives at a switch
	eventRefused                  // a packet was refused by its destination's host
	eventTimer                    // a device has work
)

var eventNames = [...]string{"call", "packet", "hop", "refused", "timer"}

// New starts a simulation that ends with the test. In a bubble of testing/synctest
// ([synctest.Test]) its time is virtual, and what happens depends on the seed alone; outside,
// it runs in real time. [Check] does what most tests need.
func New(t testing.TB, seed uint64) *Sim {
	s := &Sim{
		TB: t, seed: seed, virtual: inBubble(), begin: time.Now(),
		kick: make(chan struct{}, 1), done: make(chan struct{}),
		random: rand.New(rand.NewPCG(seed, 0)), forTest: rand.New(rand.NewPCG(seed, 1)), byAddr: make(map[netip.Addr]*Host),
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
func (s *Sim) Now() time.Duration { return time.Since(s.begin) }

// At calls f when that much time has passed since the beginning, while all goroutines wait. f
// must not block.
func (s *Sim) At(at time.Duration, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.push(max(at, s.Now()), s.random.Uint64(), event{call: f})
}

// After is At, counted from now.
func (s *Sim) After(d time.Duration, f func()) { s.At(s.Now()+d, f) }

// push adds an event. The lock is held.
func (s *Sim) push(at time.Duration, order uint64, e event) {
	s.queue.Push(at, order, e)
	if s.sleepUntil != 0 && at < s.sleepUntil {
		s.sleepUntil = 0
		select {
		case s.kick <- struct{}{}:
		default:
		}
	}
}

// drive gives out the events, one at a time, each when all goroutines wait.
func (s *Sim) drive() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for s.step(timer) {
	}
}

// step gives out an event, or waits until one is due. It returns false when the simulation has
// ended.
func (s *Sim) step(timer *time.Timer) bool {
	s.mu.Lock()
	due := s.queue.Len() > 0 && s.queue.Next() <= s.Now()
	if (due || len(s.conditions) > 0) && s.virtual {
		s.mu.Unlock()
		synctest.Wait()
		s.mu.Lock()
	}
	met := s.checkConditions()
	if met || s.ended {
		s.mu.Unlock()
		return !s.ended // the goroutine that waited goes on first
	}
	now := s.Now()
	if s.queue.Len() == 0 || s.queue.Next() > now {
		until := time.Duration(1<<63 - 1)
		if s.queue.Len() > 0 {
			until = s.queue.Next()
		}
		s.sleepUntil = until
		s.mu.Unlock()
		s.sleep(timer, until-now)
		return true
	}
	e := s.queue.Pop()
	if e.host != nil && e.host.hold(&e) {
		s.mu.Unlock()
		return true
	}
	s.events++
	s.trace.event(now, &e)
	s.mu.Unlock()
	s.give(&e, now)
	return true
}

// sleep waits until an earlier event is added or the time has passed. In a bubble it passes
// when all goroutines wait.
func (s *Sim) sleep(timer *time.Timer, d time.Duration) {
	timer.Reset(d)
	select {
	case <-timer.C:
	case <-s.kick:
		timer.Stop()
	}
	s.mu.Lock()
	s.sleepUntil = 0
	s.mu.Unlock()
}

// give lets an event happen.
func (s *Sim) give(e *event, now time.Duration) {
	switch e.kind {
	case eventCall:
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
	limit time.Duration
	met   bool
	ended chan struct{}
}

// checkConditions ends the waiting for conditions that hold, and reports whether there were
// any. All goroutines wait. The lock is held.
func (s *Sim) checkConditions() (met bool) {
	now, n := s.Now(), len(s.conditions)
	s.conditions = slices.DeleteFunc(s.conditions, func(c *condition) bool {
		if c.holds != nil {
			s.mu.Unlock()
			s.call(func() { c.met = c.holds() })
			s.mu.Lock()
		}
		if !c.met && !s.failed && now < c.limit {
			return false
		}
		close(c.ended)
		return true
	})
	return len(s.conditions) < n
}

// wait waits until the condition holds, or the simulation has failed, or the limit is reached.
func (s *Sim) wait(holds func() bool, limit time.Duration) (met bool) {
	c := &condition{holds: holds, limit: limit, ended: make(chan struct{})}
	s.mu.Lock()
	s.conditions = append(s.conditions, c)
	s.push(max(limit, s.Now()), s.random.Uint64(), event{call: func() {}})
	s.push(s.Now(), s.random.Uint64(), event{call: func() {}}) // check it at once
	s.mu.Unlock()
	<-c.ended
	s.mu.Lock()
	failed := s.failed
	s.mu.Unlock()
	if failed {
		s.TB.FailNow()
	}
	return c.met
}

// Run lets the simulation run for that long. If a host fails meanwhile, it ends the test.
func (s *Sim) Run(d time.Duration) {
	s.TB.Helper()
	s.wait(nil, s.Now()+d)
}

// RunUntil lets the simulation run until the condition holds. The condition is checked after
// every event, while all goroutines wait. If it does not hold after that much time of the
// simulation, or a host fails, the test ends, and its output lists what each host waits for.
func (s *Sim) RunUntil(holds func() bool, limit time.Duration) {
	s.TB.Helper()
	if s.wait(holds, s.Now()+limit) {
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
	s.mu.Lock()
	s.failed = true
	s.push(s.Now(), s.random.Uint64(), event{call: func() {}})
	s.mu.Unlock()
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
	failed := s.failed
	s.failed = false
	s.mu.Unlock()
	if !s.wait(func() bool { return !slices.ContainsFunc(s.hosts, (*Host).busy) }, s.Now()+endTimeout) {
		s.mu.Lock()
		report := s.report()
		s.mu.Unlock()
		s.TB.Errorf("sim: programs do not return %v after their context has ended:\n%s", endTimeout, report)
	}
	for _, h := range s.hosts {
		if err := h.closeDevice(); err != nil && !failed && !s.TB.Failed() {
			s.TB.Errorf("sim: host %s: %v", h.name, err)
		}
	}
	s.mu.Lock()
	s.ended = true
	s.push(s.Now(), 0, event{call: func() {}})
	s.mu.Unlock()
	<-s.done
	s.trace.close()
}

// Digest is a digest of all events so far. Runs of one seed have the same digests.
func (s *Sim) Digest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trace.digest
}

// Events is the number of events so far, and Packets the number of packets that hosts have
// sent.
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
