package dma

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/verbs"
)

// backend is the side of a Context that the engine sees.
type backend struct{ c *Context }

// Start implements pe.Backend.
func (b backend) Start() (bool, error) {
	c := b.c
	if err := c.acquire(); err != nil {
		return false, errors.Join(err, c.release())
	}
	return true, nil
}

// acquire takes from the device what copies go by.
func (c *Context) acquire() error {
	c.depth = c.queueSize()
	c.recvPosted, c.received, c.sendPosted, c.sent = 0, 0, 0, 0
	c.bad, c.faults = none, [2]fault{}
	c.phase, c.ended, c.told, c.broken, c.dead = phaseUp, false, false, false, false
	if n := postBatch * c.set.MaxSGE; cap(c.sendSGL) < n {
		c.sendSGL, c.recvSGL = make([]verbs.SGE, 0, n), make([]verbs.SGE, 0, n)
	}
	var err error
	if c.cq, err = c.dev.CreateCQ(verbs.CQInit{Capacity: 2 * c.depth}); err != nil {
		return fmt.Errorf("create a completion queue of %d entries on %s: %w", 2*c.depth, c.dev.Name(), err)
	}
	c.cq.OnCompletion(c.Wake)
	if c.qp, err = c.set.PD.CreateQP(verbs.QPInit{
		Type: verbs.RC, SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: c.depth, MaxRecvWR: c.depth,
		MaxSendSGE: c.set.MaxSGE, MaxRecvSGE: c.set.MaxSGE,
	}); err != nil {
		return fmt.Errorf("create a queue pair for %d copies on %s: %w", c.depth, c.dev.Name(), err)
	}
	if err := c.up(); err != nil {
		return fmt.Errorf("connect a queue pair of %s to itself: %w", c.dev.Name(), err)
	}
	c.listen()
	return nil
}

// The attributes of the connection. Its ends are the same, so that neither loss
// nor a receiver that is not ready is to be expected.
const (
	ackTimeout  = 14 // 67 ms
	retryCount  = 7
	rnrRetry    = 7  // for ever
	minRNRTimer = 12 // 640 µs
)

// up connects the queue pair to itself.
func (c *Context) up() error {
	s, psn := c.set, rand.Uint32()&0xffffff
	for _, step := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{
			verbs.QPAttr{State: verbs.QPInitialized, Port: s.Port},
			verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess,
		},
		{
			verbs.QPAttr{
				State: verbs.QPReadyToReceive,
				Address: verbs.AddressAttr{
					DGID: s.gid.GID, SGIDIndex: s.gid.Index, Port: s.Port, DLID: s.lid, UDPPort: s.gid.UDPPort,
				},
				PathMTU: s.mtu, DestQPN: c.qp.Num(), RQPSN: psn, MaxDestReadAtomic: 1, MinRNRTimer: minRNRTimer,
			},
			verbs.QPAttrAddress | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN |
				verbs.QPAttrMaxDestReadAtomic | verbs.QPAttrMinRNRTimer,
		},
		{
			verbs.QPAttr{
				State: verbs.QPReadyToSend, Timeout: ackTimeout, RetryCount: retryCount, RNRRetry: rnrRetry,
				SQPSN: psn, MaxInitReadAtomic: 1,
			},
			verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry | verbs.QPAttrSQPSN |
				verbs.QPAttrMaxInitReadAtomic,
		},
	} {
		if err := c.qp.Modify(step.attr, step.mask|verbs.QPAttrState); err != nil {
			return err
		}
	}
	return nil
}

// listen has the device tell of its failures. The function keeps to values of
// this run: it is called on the device's goroutine.
func (c *Context) listen() {
	cq, qpn, alarm := c.cq, c.qp.Num(), new(atomic.Int32)
	c.alarm = alarm
	c.unsub = c.dev.SubscribeEvents(func(ev verbs.Event) {
		switch {
		case ev.Type == verbs.EventDeviceFatal,
			ev.Type == verbs.EventQPFatal && ev.QPN == qpn,
			ev.Type == verbs.EventCQError && ev.CQ == cq:
			alarm.Store(int32(ev.Type))
			c.Wake()
		}
	})
}

// release gives back what acquire took, as far as it got.
func (c *Context) release() error {
	var errs []error
	if c.unsub != nil {
		c.unsub()
	}
	if c.qp != nil {
		errs = append(errs, c.qp.Close())
	}
	if c.cq != nil {
		errs = append(errs, c.cq.Close())
	}
	c.unsub, c.qp, c.cq, c.alarm = nil, nil, nil, nil
	return errors.Join(errs...)
}

// Progress implements pe.Backend.
func (b backend) Progress() int {
	c := b.c
	c.inside = true
	defer c.leave()
	c.post()
	polled := c.poll()
	c.judge()
	finished := c.finish()
	c.post()
	n := max(polled, finished)
	if c.phase == phaseDraining {
		n += c.wind()
	}
	return n
}

func (c *Context) leave() { c.inside = false }

// Arm implements pe.Backend.
func (b backend) Arm() bool {
	c := b.c
	if c.head != nil && c.finished(c.head) || c.postable() || c.alarmed() || c.phase == phaseDraining && c.drained() {
		return false
	}
	if c.broken {
		return true
	}
	armed, err := c.cq.Arm(false)
	if err != nil {
		c.breakDown(err)
	}
	return armed
}

// Stop implements pe.Backend.
func (b backend) Stop() {
	c := b.c
	c.phase, c.ended = phaseDraining, true
	if err := c.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState); err != nil {
		c.dead = true
		c.set.Log.Warn().Err(err).Str("context", c.set.Name).Msg("putting the queue pair in error")
	}
	c.poke()
}

// Idle implements pe.Backend.
func (b backend) Idle() {
	if err := b.c.release(); err != nil {
		b.c.set.Log.Warn().Err(err).Str("context", b.c.set.Name).Msg("releasing the device's resources")
	}
}

// drained reports whether the device has nothing left that it will give back.
func (c *Context) drained() bool {
	return c.broken || c.dead || c.sent == c.sendPosted && c.received == c.recvPosted
}

// wind takes a context that is stopping further on its way.
func (c *Context) wind() int {
	if !c.drained() {
		return 0
	}
	if c.qp != nil {
		if err := c.qp.Close(); err != nil {
			c.set.Log.Warn().Err(err).Str("context", c.set.Name).Msg("closing the queue pair")
		}
		c.qp = nil
	}
	n := c.finish()
	if c.head == nil {
		c.phase = phaseDown
		c.Stopped()
	}
	return n + 1
}

// alarmed reports whether the device has told of a failure that is not judged yet.
func (c *Context) alarmed() bool { return c.phase == phaseUp && !c.told && c.alarm.Load() != 0 }

// judge ends a run in which something has failed.
func (c *Context) judge() {
	var err error
	switch {
	case c.told || c.phase != phaseUp:
		return
	case c.bad != none:
		cause := cmp.Or(c.faults[receiving].err, c.faults[sending].err)
		if cause == nil {
			err = fmt.Errorf("dma: %w: the queue pair of context %q on %s is in error", ErrDevice, c.set.Name, c.dev.Name())
		} else {
			err = cause
		}
	case c.alarmed():
		err = fmt.Errorf("dma: %w: %s reports for context %q: %v", ErrDevice, c.dev.Name(), c.set.Name, verbs.EventType(c.alarm.Load()))
	default:
		return
	}
	c.end(err)
}

// end has the context stop by itself.
func (c *Context) end(err error) {
	c.ended, c.told = true, true
	c.set.Log.Warn().Err(err).Str("context", c.set.Name).Msg("context failed")
	c.Fail(err)
}

// breakDown ends a context whose completion queue fails.
func (c *Context) breakDown(err error) {
	c.broken = true
	c.end(fmt.Errorf("dma: %w: completion queue of context %q on %s: %w", ErrDevice, c.set.Name, c.dev.Name(), err))
}
