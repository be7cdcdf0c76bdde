package rdma

import (
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// backend is the side of a Context that the engine sees.
type backend struct{ c *Context }

// phase is how far a context has come on its way to Idle.
type phase int

const (
	phaseUp       phase = iota
	phaseDraining       // queue pairs are in error; their tasks come back
	phaseEmptying       // queue pairs are gone; their last completions are handled
	phaseFlushing       // the shared receive queue is gone; receives come back
	phaseDown
)

// Start implements pe.Backend.
func (b backend) Start() (bool, error) {
	c := b.c
	if err := c.acquire(); err != nil {
		return false, errors.Join(err, c.release())
	}
	return false, nil
}

// acquire takes from the device what all connections share.
func (c *Context) acquire() error {
	s := c.set
	c.sendDepth, c.recvDepth = c.depths()
	c.phase, c.flushing, c.broken = phaseUp, 0, false
	c.wcNext, c.wcCount, c.recvPosted = 0, 0, 0
	c.changed, c.drained = false, false
	c.slots = make([]*Connection, s.MaxConnections)
	c.free = make([]int, s.MaxConnections)
	for i := range c.free {
		c.free[i] = s.MaxConnections - 1 - i
	}
	c.byQPN = make(map[uint32]*Connection, s.MaxConnections)
	c.dirty = make([]*Connection, 0, s.MaxConnections)
	c.alerts.raised.Store(false)
	c.alerts.list, c.alerts.lost = c.alerts.list[:0], false

	// Never more than all tasks and one hello a connection.
	entries := len(c.requests) + len(c.receives) + s.MaxConnections
	if entries > s.maxCQE {
		return fmt.Errorf("%w: the pools hold %d tasks for %d connections, and a completion queue of %s %d entries; make the pools smaller",
			ErrRange, len(c.requests)+len(c.receives), s.MaxConnections, c.dev.Name(), s.maxCQE)
	}
	var err error
	if c.cq, err = c.dev.CreateCQ(verbs.CQInit{Capacity: entries}); err != nil {
		return fmt.Errorf("create a completion queue of %d entries on %s: %w", entries, c.dev.Name(), err)
	}
	c.cq.OnCompletion(c.Wake)
	if len(c.receives) > 0 {
		if c.srq, err = s.PD.CreateSRQ(verbs.SRQInit{MaxWR: c.recvDepth, MaxSGE: s.MaxRecvSGE}); err != nil {
			return fmt.Errorf("create a shared receive queue of %d receives on %s: %w", c.recvDepth, c.dev.Name(), err)
		}
	}
	if c.scratch, err = mmap.New(c.dev, mmap.Config{
		Size: 8 * (s.MaxConnections + c.words), Permissions: mmap.LocalReadWrite, PD: s.PD,
	}); err != nil {
		return err
	}
	key, err := c.scratch.LKey(s.PD)
	if err != nil {
		return err
	}
	c.scratchSG = verbs.SGE{Addr: c.scratch.Addr(), Length: 8, LKey: key}
	if err := c.openHello(); err != nil {
		return err
	}
	c.tick = time.AfterFunc(time.Hour, c.Wake)
	c.tick.Stop()
	c.unsub = c.dev.SubscribeEvents(c.alert)
	return nil
}

// release gives back what acquire took, as far as it got.
func (c *Context) release() error {
	var errs []error
	if c.unsub != nil {
		c.unsub()
	}
	if c.tick != nil {
		c.tick.Stop()
	}
	if c.srq != nil {
		errs = append(errs, c.srq.Close())
	}
	if c.cq != nil {
		errs = append(errs, c.cq.Close())
	}
	for _, m := range []*mmap.Map{c.scratch, c.hello} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	c.cq, c.srq, c.scratch, c.hello, c.unsub, c.tick = nil, nil, nil, nil, nil, nil
	c.slots, c.free, c.byQPN, c.last = nil, nil, nil, nil
	c.dirty, c.connecting, c.ailing, c.reports = nil, nil, nil, nil
	return errors.Join(errs...)
}

// Progress implements pe.Backend.
func (b backend) Progress() int {
	c := b.c
	c.inside = true
	defer c.leave()
	n := 0
	if c.alerts.raised.Load() {
		n += c.handleAlerts()
	}
	if len(c.connecting) > 0 {
		n += c.shakeHands()
	}
	c.flush()
	n += c.poll()
	c.flush()
	if len(c.ailing) > 0 {
		n += c.tend()
	}
	if c.changed {
		c.changed = false
		c.judge()
	}
	n += c.tell()
	c.flush()
	if c.phase != phaseUp {
		n += c.wind()
	}
	return n
}

func (c *Context) leave() { c.inside = false }

// Arm implements pe.Backend.
func (b backend) Arm() bool {
	c := b.c
	if c.wcNext < c.wcCount || len(c.dirty) > 0 || len(c.reports) > 0 || c.changed || c.recvWaits() ||
		c.alerts.raised.Load() || c.phase == phaseEmptying || c.phase == phaseFlushing {
		return false
	}
	if !c.broken {
		armed, err := c.cq.Arm(false)
		if err != nil {
			c.breakDown(err)
		}
		if !armed {
			return false
		}
	}
	if d := c.nextTick(); d > 0 {
		c.tick.Reset(d)
	}
	return true
}

// Stop implements pe.Backend.
func (b backend) Stop() {
	c := b.c
	c.phase = phaseDraining
	c.connecting = c.connecting[:0]
	for _, conn := range c.slots {
		if conn != nil && conn.state != Closed {
			conn.state = Closed
			conn.shut()
		}
	}
	c.Wake()
}

// Idle implements pe.Backend.
func (b backend) Idle() {
	if err := b.c.release(); err != nil {
		b.c.set.Log.Warn().Err(err).Str("context", b.c.set.Name).Msg("releasing the device's resources")
	}
}

// poll handles completions, up to a bound. Its place in the batch is kept in the
// context, so that a callback that panics costs no completion.
func (c *Context) poll() int {
	n, all := 0, false
	c.drained = false
	for n < pollBudget && !c.broken {
		if c.wcNext == c.wcCount {
			if all {
				break
			}
			got, err := c.cq.Poll(c.wcs[:])
			c.wcNext, c.wcCount = 0, got
			// Fewer than there was room for were all, until a callback runs.
			all, c.drained = got < len(c.wcs), got == 0
			if err != nil {
				c.breakDown(err)
			}
			if got == 0 {
				break
			}
		}
		n += c.complete(&c.wcs[c.wcNext])
	}
	return n
}

// The kinds of work request IDs.
const (
	idHello   = 1 << 63
	idReceive = 1 << 62
)

func (c *Context) complete(wc *verbs.WC) int {
	switch {
	case wc.ID&idHello != 0:
		c.wcNext++
		c.helloDone(wc)
		return 1
	case wc.ID&idReceive != 0:
		c.wcNext++
		return c.received(wc)
	}
	return c.sent(wc)
}

// breakDown ends a context whose completion queue fails.
func (c *Context) breakDown(err error) {
	c.broken = true
	c.failWith(fmt.Errorf("rdma: %w: completion queue of context %q on %s: %w", ErrDevice, c.set.Name, c.dev.Name(), err))
}

// judge draws the consequences of connections that changed.
func (c *Context) judge() {
	if s := c.State(); s != pe.Starting && s != pe.Running {
		return
	}
	ready, waiting := 0, 0
	var lost *Connection
	for _, conn := range c.slots {
		switch {
		case conn == nil:
		case conn.state == Ready:
			ready++
		case conn.state == Exported || conn.state == Connecting:
			waiting++
		case conn.state == Failed && !conn.judged:
			conn.judged = true
			lost = conn
		}
	}
	switch {
	case ready > 0 && waiting == 0:
		c.Started()
	case ready+waiting == 0 && lost != nil:
		c.Fail(fmt.Errorf("rdma: the last connection of context %q has failed: %w", c.set.Name, lost.err))
	}
}

// tell runs the callbacks for connections that changed.
func (c *Context) tell() int {
	n := 0
	for len(c.reports) > 0 {
		r := c.reports[0]
		c.reports = c.reports[1:]
		n++
		if c.onConnection != nil {
			c.onConnection(r.conn, r.state, r.err)
		}
	}
	return n
}

// wind takes a context that is stopping further on its way.
func (c *Context) wind() int {
	switch c.phase {
	case phaseDraining:
		for _, conn := range c.slots {
			if conn != nil && conn.posted > 0 && !c.broken {
				return 0
			}
		}
		n := 1
		for _, conn := range c.slots {
			if conn != nil {
				n += conn.destroy()
			}
		}
		c.ailing = c.ailing[:0]
		c.phase = phaseEmptying
		return n
	case phaseEmptying:
		// Completions that came before the queue pairs went.
		if c.wcNext < c.wcCount {
			return 1
		}
		if !c.broken {
			got, err := c.cq.Poll(c.wcs[:])
			c.wcNext, c.wcCount = 0, got
			if err == nil && got > 0 {
				return 1
			}
		}
		if c.srq != nil {
			if err := c.srq.Close(); err != nil {
				c.set.Log.Warn().Err(err).Str("context", c.set.Name).Msg("closing the shared receive queue")
			}
			c.srq = nil
		}
		c.phase = phaseFlushing
		return 1
	case phaseFlushing:
		n := 1
		for ; c.flushing < len(c.receives) && n < pollBudget; c.flushing++ {
			n += c.receives[c.flushing].flush()
		}
		if c.flushing == len(c.receives) {
			c.recvHead, c.recvTail = nil, nil
			c.phase = phaseDown
			c.Stopped()
		}
		return n
	}
	return 0
}
