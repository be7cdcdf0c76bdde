package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/internal/goroutine"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/verbs"
)

// HostConfig configures a host. Only Name is needed.
type HostConfig struct {
	// Name appears in reports and names the host's files. It must not be empty.
	Name string
	// Addresses are those of the host's interface, and become the GID table of its device.
	// Empty: the next free address of 10.0.0.0/8.
	Addresses []netip.Addr
	// MTU is that of the interface. Zero: 9000, which allows a path MTU of 4096.
	MTU int
	// CongestionControl is as in [soft.Config].
	CongestionControl bool
	// ClockRate is how fast the clock and the timers of the host run: 1.01 is one percent too
	// fast. Zero: 1.
	ClockRate float64
	// Log is where the device logs.
	Log zerolog.Logger
}

// Host is a simulated host, with one device. Its methods may be called as those of [Sim], and
// Rand, Now, Sleep and Go by its program.
type Host struct {
	s      *Sim
	cfg    HostConfig
	name   string
	index  int
	node   *node
	random *rand.Rand // for the device and the library
	forked *rand.Rand // for the program
	orders uint64     // numbers drawn for the order of events

	// Guarded by the simulation's lock.
	down      bool   // crashed, and not started again
	crashes   causes // of that; empty: Restart was called
	pauses    causes
	held      []event // that came while it was paused
	ports     map[netip.AddrPort]*port
	reports   []*fmt.Stringer
	waiters   []*waiter
	waiting   [waitReasons]int // how many waiters there are, by reason
	idlePolls int              // polls in a row that found nothing
	program   func(ctx context.Context, dev verbs.Device) error
	running   bool                    // the program's goroutine
	again     bool                    // run the program again when it has returned
	cancel    context.CancelCauseFunc // of the program; without one it does nothing
	starts    int

	dev   *device // nil: not opened yet
	clock clock
	disk  *Disk
}

// clock is the clock of a host: at was its time at the simulation's time since, without its offset.
type clock struct {
	base   float64 // its rate without faults
	faults causes
	rate   float64
	offset time.Duration
	at     time.Time
	since  time.Duration
}

// Host returns the host with that name. The first call for a name adds it.
func (s *Sim) Host(name string) *Host {
	s.mu.Lock()
	i := slices.IndexFunc(s.hosts, func(h *Host) bool { return h.name == name })
	s.mu.Unlock()
	if i >= 0 {
		return s.hosts[i]
	}
	return s.AddHost(HostConfig{Name: name})
}

// Hosts returns n hosts, named prefix0 and so on.
func (s *Sim) Hosts(prefix string, n int) []*Host {
	hosts := make([]*Host, n)
	for i := range hosts {
		hosts[i] = s.Host(fmt.Sprint(prefix, i))
	}
	return hosts
}

// AddHost adds a host. It panics if the name or an address is taken.
func (s *Sim) AddHost(cfg HostConfig) *Host {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cfg.Name == "" || slices.ContainsFunc(s.hosts, func(h *Host) bool { return h.name == cfg.Name }) {
		panic(fmt.Sprintf("sim: cannot add a host with the name %q: it is empty or taken", cfg.Name))
	}
	n := len(s.hosts) + 1
	for next := n; len(cfg.Addresses) == 0; next++ {
		if a := netip.AddrFrom4([4]byte{10, byte(next >> 16), byte(next >> 8), byte(next)}); s.byAddr[a] == nil {
			cfg.Addresses = []netip.Addr{a}
		}
	}
	if cfg.MTU == 0 {
		cfg.MTU = 9000
	}
	h := &Host{
		s: s, cfg: cfg, name: cfg.Name, index: n,
		random: rand.New(rand.NewPCG(s.seed, uint64(n)<<8)),
		forked: rand.New(rand.NewPCG(s.seed, uint64(n)<<8|1)),
		ports:  make(map[netip.AddrPort]*port),
		clock:  clock{base: 1, rate: 1, at: s.begin},
		cancel: func(error) {},
	}
	if cfg.ClockRate > 0 {
		h.clock.base, h.clock.rate = cfg.ClockRate, cfg.ClockRate
	}
	h.disk = newDisk(h)
	for _, a := range cfg.Addresses {
		if s.byAddr[a] != nil {
			panic(fmt.Sprintf("sim: cannot add host %s: host %s has the address %v", cfg.Name, s.byAddr[a].name, a))
		}
		s.byAddr[a] = h
	}
	h.node = s.topology.add(h)
	s.hosts = append(s.hosts, h)
	return h
}

// Name is the name of the host.
func (h *Host) Name() string { return h.name }

// String is the name of the host.
func (h *Host) String() string { return h.name }

// Addr is the first address of the host.
func (h *Host) Addr() netip.Addr { return h.cfg.Addresses[0] }

// Rand is a source of random numbers from the seed, for the host's program. Only the host's
// goroutines may use it.
func (h *Host) Rand() *rand.Rand { return h.forked }

// Now is the time of the host's clock. If a [Nemesis] steps the clock, the time jumps, backwards too.
func (h *Host) Now() time.Time {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.now().Add(h.clock.offset)
}

// Monotonic is how much time has passed since the beginning by the host's clock, without its steps.
func (h *Host) Monotonic() time.Duration {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.now().Sub(h.s.begin)
}

// now is the time without steps.
func (h *Host) now() time.Time {
	c := &h.clock
	if c.rate == 1 {
		return c.at.Add(h.s.elapsed() - c.since)
	}
	return c.at.Add(time.Duration(c.rate * float64(h.s.elapsed()-c.since)))
}

// SetClockRate makes the clock and the timers of the host run faster or slower from now on.
// Timers that are set already keep their time.
func (h *Host) SetClockRate(rate float64) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if rate > 0 {
		h.setClock(rate, h.clock.faults)
	}
}

// setClock sets what the rate and the offset of the clock come from. The lock is held.
func (h *Host) setClock(base float64, faults causes) {
	c := clock{base: base, faults: faults, rate: base, at: h.now(), since: h.s.elapsed()}
	if n := len(faults); n > 0 { // the latest one decides, so that limits hold
		c.rate, c.offset = base*(1+faults[n-1].Drift), faults[n-1].Offset
	}
	h.clock = c
}

// setClockFaults is setClock with the faults that change returns.
func (h *Host) setClockFaults(change func(causes) causes) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.setClock(h.clock.base, change(h.clock.faults))
}

// when returns the simulation's time at which the host's clock shows t.
func (h *Host) when(t time.Time) time.Duration {
	c := &h.clock
	d := t.Sub(c.at)
	if c.rate != 1 {
		d = time.Duration(float64(d)/c.rate) + 1
	}
	return c.since + d
}

// Sleep lets the calling goroutine of the host wait for that long by the host's clock. Unlike
// [time.Sleep], two goroutines that wake at the same moment go on in an order that the seed
// decides. It returns early when the context of the host's program ends. When the simulation has
// ended, it ends the goroutine, as [runtime.Goexit] does.
func (h *Host) Sleep(d time.Duration) {
	h.s.mu.Lock()
	w := h.newWaiter(sleeps)
	h.push(h.when(h.now().Add(d)), event{call: w.wake})
	h.s.mu.Unlock()
	w.wait()
}

// turn returns when all other goroutines wait, and it is the caller's turn among those with a
// place at this time. When the simulation has ended, it returns at once.
func (h *Host) turn(place uint64) {
	s := h.s
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	w := h.newWaiter(awaitsTurn)
	s.push(s.elapsed(), place, event{host: h, call: w.wake})
	s.mu.Unlock()
	w.wait()
}

// Go starts a goroutine of the host, when all others wait and it is its turn. Unlike one that a
// go statement starts, it does not work at the same time as its caller.
func (h *Host) Go(f func()) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.push(h.s.elapsed(), event{call: func() {
		go func() {
			defer func() {
				if p := recover(); p != nil {
					h.repanic(p)
				}
			}()
			f()
		}()
	}})
}

// push adds an event that happens at the host. The lock is held.
func (h *Host) push(at time.Duration, e event) {
	e.host = h
	h.s.push(max(at, h.s.elapsed()), h.order(), e)
}

// order draws the place of an event among those at the same time. Each host has its own sequence of
// draws, so that the events of one host do not change the places of another's. Long polls are the
// exception: an event anywhere ends them, which draws for their hosts.
func (h *Host) order() uint64 {
	h.orders++
	x := h.s.seed ^ uint64(h.index)<<48 ^ h.orders*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hold keeps an event of a paused host for later, and reports whether it has. The lock is held.
func (h *Host) hold(e *event) bool {
	if len(h.pauses) == 0 {
		return false
	}
	h.held = append(h.held, *e)
	return true
}

// Pause makes the host stand still: its goroutines and timers do not go on, and packets wait.
// Goroutines of the program that wait for something outside the simulation, such as
// [time.Sleep], go on.
func (h *Host) Pause() { h.pause(nil) }

func (h *Host) pause(by *fault) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.pauses = h.pauses.with(by)
}

// Resume ends a pause, that of a [Nemesis] too.
func (h *Host) Resume() {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.setPauses(nil)
}

// endPause ends the pause by a fault.
func (h *Host) endPause(by *fault) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.setPauses(h.pauses.without(by))
}

// setPauses lets the host go on if nothing pauses it any more. The lock is held.
func (h *Host) setPauses(c causes) {
	if h.pauses = c; len(c) > 0 {
		return
	}
	held := h.held
	h.held = nil
	for i, e := range held { // in their order
		h.s.push(h.s.elapsed(), uint64(i), e)
	}
}

// Run starts a program on the host: on a goroutine of its own, with the host's device, which
// is closed when the program has returned. The program returns when its context ends, at the
// latest, and its goroutines have ended then, or end soon. An error that it returns before that
// makes the test fail, and so does a program that leaves objects of the device open, or
// goroutines.
func (h *Host) Run(program func(ctx context.Context, dev verbs.Device) error) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if h.program != nil {
		panic(fmt.Sprintf("sim: host %s has a program already", h.name))
	}
	h.program = program
	h.start()
}

// start starts the program. The lock is held.
func (h *Host) start() {
	h.running, h.again, h.down, h.crashes = true, false, false, nil
	h.s.addresses.forget(h)
	h.starts++
	ctx, cancel := context.WithCancelCause(context.Background())
	h.cancel = cancel
	h.reports = nil
	h.push(h.s.elapsed(), event{call: func() { go h.runProgram(ctx) }})
}

func (h *Host) runProgram(ctx context.Context) {
	returned := false
	defer func() {
		if p := recover(); p != nil {
			h.repanic(p)
		}
		if !returned { // FailNow or SkipNow
			if !h.s.skipped() {
				h.s.fail("sim: host %s, seed %d: its program has ended its goroutine", h.name, h.s.seed)
			}
			h.ended()
		}
	}()
	dev, err := h.open()
	if err == nil {
		err = h.program(ctx, dev)
	}
	returned = true
	cause := context.Cause(ctx)
	closed := h.closeDevice()
	h.s.mu.Lock()
	crashed := h.down || errors.Is(cause, ErrCrashed) // the program may notice before its context ends
	ending := h.s.ending
	h.s.mu.Unlock()
	switch {
	case crashed:
	case err != nil && cause == nil && !ending: // after that, peers end too, and an error says nothing
		h.s.fail("sim: host %s, seed %d: its program returned: %v", h.name, h.s.seed, err)
	case err != nil && ending && (cause == nil || err.Error() != cause.Error()):
		h.s.TB.Logf("sim: host %s returned after the end of the test: %v", h.name, err)
	case closed != nil:
		h.s.fail("sim: host %s, seed %d: its program left objects open: %v", h.name, h.s.seed, closed)
	}
	h.ended()
}

// ended ends the context of the program, whose goroutine has ended.
func (h *Host) ended() {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.running = false
	h.cancel(nil)
	h.wakeAll(sleeps, eventCall)
	if h.again && !h.s.ending {
		h.start()
	}
}

// repanic repeats a panic of the host's, with the host and the seed.
func (h *Host) repanic(p any) {
	panic(fmt.Sprintf("sim: panic on host %s, seed %d: %v\n%s", h.name, h.s.seed, p, debug.Stack()))
}

// Crash makes the host end at once: no packet leaves or arrives any more, calls on its device
// return [ErrCrashed], and the context of its program ends.
func (h *Host) Crash() { h.crash(nil) }

func (h *Host) crash(by *fault) {
	s := h.s
	s.mu.Lock()
	h.again = false
	h.crashes = h.crashes.with(by)
	if h.down {
		s.mu.Unlock()
		return
	}
	h.down = true
	for _, p := range h.ports {
		p.closed = true // the program may never close its device
	}
	clear(h.ports)
	h.disk.crash()
	dev := h.dev
	h.endProgram(ErrCrashed)
	s.mu.Unlock()
	if dev != nil {
		dev.Break(ErrCrashed)
	}
}

// Restart makes a crashed host run its program again, as soon as the program has returned. The
// device is another one, with other keys and numbers; that of a host without a program is
// opened by the next call of [Host.Device].
func (h *Host) Restart() {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.setCrashes(nil)
}

// endCrash ends the crash by a fault.
func (h *Host) endCrash(by *fault) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if slices.Contains(h.crashes, by) {
		h.setCrashes(h.crashes.without(by))
	}
}

// setCrashes restarts the host if nothing keeps it crashed any more. The lock is held.
func (h *Host) setCrashes(c causes) {
	h.crashes = c
	switch {
	case !h.down || len(c) > 0 || h.s.ending:
	case h.program == nil:
		h.down, h.dev = false, nil
	case h.running:
		h.again = true
	default:
		h.start()
	}
}

// Crashed reports whether the host has crashed and was not started again.
func (h *Host) Crashed() bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.down
}

// Starts is how often the host's program was started.
func (h *Host) Starts() int {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.starts
}

// endProgram ends the context of the program, and a pause, so that it can return. The lock is
// held.
func (h *Host) endProgram(cause error) {
	if h.running || h.waiting[sleeps] > 0 {
		cancel := h.cancel
		h.push(h.s.elapsed(), event{call: func() {
			cancel(cause)
			h.s.mu.Lock()
			defer h.s.mu.Unlock()
			h.wakeAll(sleeps, eventCall)
		}})
	}
	h.setPauses(nil)
}

// busy reports whether the program has not returned, or goroutines of the host sleep.
func (h *Host) busy() bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.running || h.waiting[sleeps] > 0
}

// condition describes the host for a report. The lock is held.
func (h *Host) condition() string {
	switch {
	case h.down && h.running:
		return "crashed; its program has not returned"
	case h.down:
		return "crashed"
	case len(h.pauses) > 0:
		return fmt.Sprintf("paused; %d events wait", len(h.held))
	case h.running:
		return "its program runs"
	case len(h.waiters) > 0:
		return fmt.Sprintf("%d goroutines sleep or poll, and no program runs", len(h.waiters))
	case h.program != nil:
		return "its program has returned"
	}
	return "it has no program"
}

// turns implements host.Host for the library. Go is that of Host.
type turns struct{ *Host }

// Now implements host.Host. Steps of the clock do not concern the library, whose timers are monotonic.
func (t turns) Now() time.Time {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.now()
}

// Until implements host.Host.
func (t turns) Until(u time.Time) time.Duration { return u.Sub(t.Host.Now()) }

// AfterFunc implements host.Host.
func (t turns) AfterFunc(d time.Duration, f func()) host.Timer {
	x := &timer{host: t.Host, f: f}
	x.Reset(d)
	return x
}

// Random implements host.Host.
func (t turns) Random(b []byte) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	for len(b) > 0 {
		x := t.random.Uint64()
		for i := 0; i < 8 && len(b) > 0; i++ {
			b[0] = byte(x)
			b, x = b[1:], x>>8
		}
	}
}

// Scheduler implements host.Host.
func (t turns) Scheduler() host.Scheduler {
	if !t.s.virtual {
		return nil
	}
	return t
}

// Simulation implements host.Scheduler.
func (t turns) Simulation() any { return t.s }

// Report implements host.Scheduler.
func (t turns) Report(what fmt.Stringer) (remove func()) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	entry := &what
	t.reports = append(t.reports, entry)
	return func() {
		t.s.mu.Lock()
		defer t.s.mu.Unlock()
		t.reports = slices.DeleteFunc(t.reports, func(e *fmt.Stringer) bool { return e == entry })
	}
}

// Ticket implements host.Scheduler.
func (t turns) Ticket() uint64 {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.order()
}

// Turn implements host.Scheduler.
func (t turns) Turn(ticket uint64) {
	if t.s.driver == goroutine.Current() {
		return // all other goroutines wait
	}
	t.turn(ticket)
}

// Yield implements host.Scheduler.
func (t turns) Yield() {
	switch s := t.s; {
	case s.driver == goroutine.Current():
	case s.beginWait(): // the driver sleeps
		synctest.Wait()
		s.endWait()
	default: // another goroutine yields: it was not the caller's turn
		t.turn(t.Ticket())
	}
}

// Wake implements host.Scheduler.
func (t turns) Wake(f func()) {
	t.s.mu.Lock()
	ended := t.s.ended
	if !ended {
		t.push(t.s.elapsed(), event{call: f})
	}
	t.s.mu.Unlock()
	if ended {
		f()
	}
}

// waiter is a goroutine of a host that waits.
type waiter struct {
	host   *Host
	reason waitReason
	c      chan struct{}
	woken  bool
}

// waitReason is why a goroutine waits.
type waitReason uint8

const (
	sleeps waitReason = iota
	polls             // and has found nothing
	awaitsTurn
	waitReasons
)

// newWaiter adds a waiter. The lock is held. The caller releases it, and then calls wait.
func (h *Host) newWaiter(why waitReason) *waiter {
	w := &waiter{host: h, reason: why, c: h.s.channel()}
	h.waiters = append(h.waiters, w)
	h.waiting[why]++
	return w
}

// wait returns when wake is called. When the simulation has ended, a goroutine that waits for its
// turn goes on by itself. Others end: one that polls or sleeps again and again would never end by
// itself.
func (w *waiter) wait() {
	s := w.host.s
	select {
	case <-w.c:
	case <-s.done:
		if w.reason != awaitsTurn {
			runtime.Goexit()
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spare = append(s.spare, w.c)
}

// wake lets the goroutine go on, if it waits.
func (w *waiter) wake() {
	h := w.host
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if w.woken {
		return
	}
	w.woken = true
	h.waiting[w.reason]--
	h.waiters = slices.DeleteFunc(h.waiters, func(o *waiter) bool { return o == w })
	w.c <- struct{}{}
}

// wakeAll lets the goroutines go on that wait for that reason. The lock is held.
func (h *Host) wakeAll(why waitReason, kind eventKind) {
	for _, w := range h.waiters {
		if w.reason == why {
			h.push(h.s.elapsed(), event{kind: kind, call: w.wake})
		}
	}
}

const (
	// pollInterval is how long a poll takes that finds nothing, unless something happens at the host
	// meanwhile.
	pollInterval = 5 * time.Microsecond
	// slowerAfter is how many polls in vain it takes until the next ones take twice as long: then
	// simulated time passes fast although a program polls, and a program that polls until a time is
	// late by a thirtieth of the time that it has waited.
	slowerAfter = 32
	// maxDoublings is how often the time of a poll doubles: up to 82 ms.
	maxDoublings = 14
	// maxPollLag limits the time of a poll while something happens anywhere, since its goroutine may
	// poll several hosts, or wait for what a program does that polls another host.
	maxPollLag = pollInterval << 5
	// activeFor is how long after the latest event maxPollLag applies.
	activeFor = 4 * maxPollLag
)

// Idle implements host.Scheduler.
func (t turns) Idle() {
	s := t.s
	if s.driver == goroutine.Current() {
		return
	}
	s.mu.Lock()
	w := t.newWaiter(polls)
	t.idlePolls++
	d := pollInterval << min(t.idlePolls/slowerAfter, maxDoublings)
	switch {
	case d <= maxPollLag:
	case s.elapsed() < s.activeAt+activeFor:
		d = maxPollLag
	default:
		s.longPolls = append(s.longPolls, w)
	}
	t.push(s.elapsed()+d, event{kind: eventPoll, call: w.wake})
	s.mu.Unlock()
	w.wait()
}

// endLongPolls ends them soon, since something happens. The lock is held.
func (s *Sim) endLongPolls() {
	s.activeAt = s.elapsed()
	for _, w := range s.longPolls {
		if !w.woken {
			w.host.push(s.elapsed()+maxPollLag, event{kind: eventPoll, call: w.wake})
		}
	}
	clear(s.longPolls)
	s.longPolls = s.longPolls[:0]
}

// endPolls lets the goroutines that poll go on, since something has happened at the host.
func (h *Host) endPolls() {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.idlePolls = 0
	h.wakeAll(polls, eventPoll)
}

// timer is a timer of a host's.
type timer struct {
	host *Host
	f    func()
	set  uint64 // how often it was set or stopped
	on   bool
}

// Reset implements host.Timer.
func (t *timer) Reset(d time.Duration) bool {
	h := t.host
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	was := t.on
	t.on = true
	t.set++
	set := t.set
	h.push(h.when(h.now().Add(max(d, 0))), event{call: func() { t.fire(set) }})
	return was
}

// Stop implements host.Timer.
func (t *timer) Stop() bool {
	t.host.s.mu.Lock()
	defer t.host.s.mu.Unlock()
	was := t.on
	t.on = false
	t.set++
	return was
}

func (t *timer) fire(set uint64) {
	t.host.s.mu.Lock()
	if t.set != set {
		t.host.s.mu.Unlock()
		return
	}
	t.on = false
	t.host.s.mu.Unlock()
	t.f()
	t.host.endPolls()
}
