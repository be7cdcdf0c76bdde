package roce

import (
	"errors"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/profiling"
	"github.com/verbena-rdma/verbena/internal/spin"
	"github.com/verbena-rdma/verbena/verbs"
)

// driver does the work of a shard for a goroutine that waits: the device's own, or one that sleeps at
// the shard. One of them at a time waits at the shard's sockets.
type driver struct {
	spinning spin.Spin
	// over reports whether the goroutine has to leave the work to others, or goes on with something
	// else. It is called with the lock held, before each round.
	over func() bool
	// found is called after the first round, and after the first round that follows a wait. Nil: not.
	found func(work)
}

// drive works, and waits for work, until over reports true. It returns an error if it cannot wait.
func (s *shard) drive(v *driver, look look) error {
	d := s.device
	woken := true
	for {
		s.mu.Lock()
		if v.over() {
			s.mu.wakesAt = 0 // nobody waits
			s.mu.Unlock()
			return nil
		}
		now := d.now()
		found := s.progress(now, look)
		if woken && v.found != nil {
			v.found(found)
		}
		again := v.spinning.KeepPolling(now, found != 0)
		woken, look = false, atAll
		if again || s.readyToSend() || s.handoffs.waiting.Load() || s.mu.local.Active() && !s.mu.local.ArmWakeups() {
			overlooked := now-s.looked >= maxOverlooked
			if overlooked {
				s.leaveToPolls() // each round looks there
			}
			s.mu.Unlock()
			if overlooked {
				if err := s.sockets.Poll(); err != nil {
					return err
				}
				s.looked = now
			}
			if found == 0 {
				v.spinning.Yield()
			}
			continue
		}
		at := s.waitDeadline()
		for _, e := range s.endpoints {
			e.socket.EndWait(true)
		}
		s.mu.Unlock()
		if err := s.sockets.Wait(at); err != nil {
			return err
		}
		s.looked = d.now()
		v.spinning.Woken(s.looked)
		woken, look = true, atReady
	}
}

// maxOverlooked is how long a shard that always has work does without a look at its wait set. Only
// there it learns of packets at sockets that rounds do not look at, and of messages of channels
// through shared memory: a new peer, or the death of one.
const maxOverlooked = 100 * time.Microsecond

// waitDeadline returns until when the shard can wait; the zero time: for ever. An earlier deadline that
// comes up meanwhile ends the wait.
func (s *shard) waitDeadline() time.Time {
	if s.mu.deadline == 0 {
		s.mu.wakesAt = never
		return time.Time{}
	}
	s.mu.wakesAt = s.mu.deadline
	return s.device.base.Add(s.mu.deadline)
}

// run is the device's own goroutine of the shard.
func (s *shard) run() {
	d := s.device
	defer d.running.Done()
	profiling.Label("packets", d.cfg.Name, "")
	var pause time.Duration
	closed, paused := false, false
	v := driver{
		spinning: spin.New(d.cfg.Spin),
		over: func() bool {
			pause, closed = s.mu.attendance.Look(), d.mu.closed || s.mu.failed
			switch {
			case s.mu.attendance.watched:
				s.watch.Reset(pollerGrace)
			case pause == pollerGrace:
				s.leaveToPolls()
			}
			return pause != 0 || closed
		},
		found: func(found work) {
			s.mu.attendance.Found(found, paused)
			paused = false
		},
	}
	for attempts := 0; ; {
		// A program that unlocks a mutex with a waiter wakes a thread, and may have to wait itself
		// (starvation mode of sync.Mutex). So after a pause, the lock is waited for only if it is
		// never free.
		if paused && attempts < maxLockAttempts && !s.tryLock() {
			attempts++
			s.rest(pollerGrace)
			continue
		}
		attempts = 0
		s.mu.Lock()
		works := !v.over()
		s.mu.Unlock()
		if works && s.working.TryLock() {
			err := s.drive(&v, atAll)
			s.working.Unlock()
			if err != nil {
				s.fail(err)
				return
			}
		}
		if closed {
			return
		}
		paused = s.rest(pause)
	}
}

// maxLockAttempts is how many times in a row the device's goroutine finds the lock taken before it
// waits for it.
const maxLockAttempts = 3

// tryLock reports whether the lock is free.
func (s *shard) tryLock() bool {
	if !s.mu.TryLock() {
		return false
	}
	s.mu.Unlock()
	return true
}

// rest leaves the work to others for a pause. It reports whether the pause has passed. Packets at
// sockets that programs do not poll end it, and are taken.
func (s *shard) rest(pause time.Duration) (passed bool) {
	switch pause {
	case 0: // a goroutine has just begun to sleep at the shard
		runtime.Gosched()
		return false
	case untilCalled:
		select {
		case <-s.watch.C:
			return true
		case <-s.called:
			return false
		}
	case shortPause:
		spin.Sleep(shortPause)
		return true
	}
	if !s.working.TryLock() {
		return false // a goroutine sleeps at the shard
	}
	defer s.working.Unlock()
	d := s.device
	until := d.now() + pause
	if err := s.sockets.Wait(d.base.Add(until)); err != nil {
		s.fail(err)
		return false
	}
	s.looked = d.now()
	if s.looked >= until {
		return true
	}
	s.takeUnpolled()
	return false
}

// takeUnpolled receives packets at sockets that programs do not poll, if a wait has ended for one:
// nobody else takes them while programs poll, and each wait would end at once.
func (s *shard) takeUnpolled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.device.now()
	for _, e := range s.endpoints {
		if e.socket.Ready() && !e.polledFor(now) {
			s.progress(now, atReady)
			return
		}
	}
}

// leaveToPolls keeps packets at sockets that programs poll from ending a wait. The lock is held.
func (s *shard) leaveToPolls() {
	now := s.device.now()
	for _, e := range s.endpoints {
		e.socket.EndWait(!e.polledFor(now))
	}
}

// call makes the device's goroutine look at once who does the work. In a simulation there is no such
// goroutine: the network does the work.
func (s *shard) call() {
	if s.device.net.Simulated() {
		return
	}
	s.sockets.Interrupt()
	select {
	case s.called <- struct{}{}:
	default:
	}
}

// Sleep implements host.Sleeper.
func (s *shard) Sleep(ended *atomic.Bool) bool {
	s.mu.Lock()
	enters := !s.device.mu.closed && !s.mu.failed && s.mu.attendance.Enter()
	s.mu.Unlock()
	if !enters {
		return false
	}
	if !s.working.TryLock() {
		s.sockets.Interrupt()
		s.working.Lock()
	}
	s.sockets.ClearInterrupt() // the first round finds what it announced
	s.ended = ended
	err := s.drive(&s.sleeper, atReady)
	s.mu.Lock()
	watch := s.mu.attendance.Wakes()
	s.mu.Unlock()
	s.working.Unlock()
	if watch {
		s.watch.Reset(pollerGrace)
	}
	if err != nil {
		s.fail(err)
	}
	return err == nil
}

// Wake implements host.Sleeper.
func (s *shard) Wake() { s.sockets.Interrupt() }

// Leave implements host.Sleeper.
func (s *shard) Leave() {
	s.mu.Lock()
	call := s.mu.attendance.Leave()
	s.mu.Unlock()
	if call {
		s.call()
	}
}

// fail records that nobody can wait for the shard any more. It reports that once: whoever sleeps at
// the shard would try again when it learns of it.
func (s *shard) fail(err error) {
	s.mu.Lock()
	first := !s.mu.failed
	s.mu.failed = true
	s.mu.Unlock()
	if first {
		s.device.fatal(err)
	}
}

// fatal reports the loss of the sockets, unless the device has closed them.
func (d *Device) fatal(err error) {
	if errors.Is(err, net.ErrClosed) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log.Error().Err(err).Str("device", d.cfg.Name).Msg("the device failed while waiting for packets")
	d.report(verbs.Event{Type: verbs.EventDeviceFatal})
}
