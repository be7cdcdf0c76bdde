package roce

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/verbs"
)

// completionQueue is guarded by the lock of its shard.
type completionQueue struct {
	device  *Device
	shard   *shard
	index   int // among the queues of the device
	poller  any // CQInit.Poller
	entries transport.Ring[completion]
	overrun bool
	armed   armed
	notify  func()
	refs    int
	closed  bool

	// fresh are the last entries: those that have come since the last call of notify.
	fresh struct{ all, solicited int }

	remote      bool         // queue pairs of other shards use it
	outstanding atomic.Int64 // if remote: completions in the queue, or on their way to it

	extended *extendedQueue // nil: the program asked for no fields beyond WC
	fields   verbs.WCFields
	extras   transport.Ring[verbs.WCExtra] // one for each entry, if extended is set
}

type completion struct {
	wc        verbs.WC
	frees     freedEntries
	solicited bool // or failed: a queue that is armed for solicited completions notifies
}

// extendedQueue is a completion queue that reports fields beyond those of verbs.WC.
type extendedQueue struct{ *completionQueue }

// completionFields are the fields that an extended queue can report.
const completionFields = verbs.WCTimestamp | verbs.WCWallClock | verbs.WCSource

// asCompletionQueue returns the queue behind cq, or nil if another driver made cq.
func asCompletionQueue(cq verbs.CQ) *completionQueue {
	switch c := cq.(type) {
	case *completionQueue:
		return c
	case *extendedQueue:
		return c.completionQueue
	}
	return nil
}

// handle returns the queue in the form that the program holds.
func (c *completionQueue) handle() verbs.CQ {
	if c.extended != nil {
		return c.extended
	}
	return c
}

type armed uint8

const (
	notArmed armed = iota
	armedSolicited
	armedAny
)

// CreateCQ implements verbs.Device.
func (d *Device) CreateCQ(init verbs.CQInit) (verbs.CQ, error) {
	const op = "create completion queue"
	if init.Capacity < 1 || init.Capacity > maxCQE {
		return nil, fmt.Errorf("%s: Capacity is %d, must be from 1 to %d: %w", op, init.Capacity, maxCQE, verbs.ErrLimit)
	}
	if unknown := init.Fields &^ completionFields; unknown != 0 {
		return nil, fmt.Errorf("%s: device %s does not have the completion fields %#x: %w", op, d.cfg.Name, uint32(unknown), verbs.ErrNotSupported)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkOpen(op); err != nil {
		return nil, err
	}
	if err := d.checkRoom(op, len(d.mu.queues), d.limits.completionQueues, "completion queues"); err != nil {
		return nil, err
	}
	s := d.shardOf(init.Poller)
	d.addPoller(init.Poller, s)
	c := &completionQueue{device: d, shard: s, poller: init.Poller, entries: transport.NewRing[completion](init.Capacity), index: len(d.mu.queues)}
	d.mu.queues = append(d.mu.queues, c)
	if init.Fields != 0 {
		c.fields, c.extras = init.Fields, transport.NewRing[verbs.WCExtra](init.Capacity)
		c.extended = &extendedQueue{c}
	}
	return c.handle(), nil
}

// lock takes the lock of the queue's shard. The caller unlocks it.
func (c *completionQueue) lock() *shard {
	c.shard.mu.Lock()
	return c.shard
}

// Capacity implements verbs.CQ.
func (c *completionQueue) Capacity() int {
	defer c.lock().mu.Unlock()
	return c.entries.Depth()
}

// Complete implements transport.Completer.
func (c *completionQueue) Complete(wc verbs.WC, frees transport.QueueEntries, solicited bool) {
	c.complete(wc, freedEntries{QueueEntries: frees}, solicited, verbs.NoAH, verbs.GID{})
}

// CompleteFrom implements srd.Completer.
func (c *completionQueue) CompleteFrom(wc verbs.WC, frees transport.QueueEntries, number uint16, gid verbs.GID) {
	c.complete(wc, freedEntries{QueueEntries: frees}, false, number, gid)
}

// complete appends a completion. number and gid name its sender: the number of the address
// handle for it, or its GID.
func (c *completionQueue) complete(wc verbs.WC, frees freedEntries, solicited bool, number uint16, gid verbs.GID) {
	if c.overrun || c.entries.Full() {
		frees.free()
		c.overflow()
		return
	}
	if c.remote {
		c.outstanding.Add(1)
	}
	e := c.entries.Push()
	e.wc, e.frees, e.solicited = wc, frees, solicited || wc.Status != verbs.StatusSuccess
	c.fresh.all++
	if e.solicited {
		c.fresh.solicited++
	}
	if c.fields != 0 {
		*c.extras.Push() = c.extra(number, gid)
	}
	// Wake a program that waits for the completion.
	if c.armed == armedAny || c.armed == armedSolicited && e.solicited {
		c.fire()
	}
}

// Room implements srd.Completer.
func (c *completionQueue) Room(others int) bool { return c.entries.Len()+others < c.entries.Depth() }

// extra returns the requested fields beyond those of verbs.WC.
func (c *completionQueue) extra(number uint16, gid verbs.GID) (x verbs.WCExtra) {
	if c.fields&verbs.WCSource != 0 {
		x.SourceAH, x.SourceGID = number, gid
	}
	if c.fields&(verbs.WCTimestamp|verbs.WCWallClock) == 0 {
		return x
	}
	now := c.device.net.Now()
	if c.fields&verbs.WCTimestamp != 0 {
		x.Timestamp = uint64(now.Sub(c.device.base))
	}
	if c.fields&verbs.WCWallClock != 0 {
		x.WallClock = uint64(now.UnixNano())
	}
	return x
}

func (c *completionQueue) fire() {
	c.armed = notArmed
	c.fresh.all, c.fresh.solicited = 0, 0
	if c.notify != nil {
		c.notify()
	}
}

// overflow is called when there is no room for a completion. It discards all completions and
// frees their receives and send requests at once, so that a shared receive queue, which other
// queue pairs use too, loses none.
func (c *completionQueue) overflow() {
	if c.overrun {
		return
	}
	c.overrun = true
	for c.entries.Len() > 0 {
		c.pop()
	}
	s := c.shard
	s.mu.overrun = append(s.mu.overrun, c)
	c.device.log.Error().Str("device", c.device.cfg.Name).Int("entries", c.entries.Depth()).Msg("completion queue overrun")
	c.device.report(verbs.Event{Type: verbs.EventCQError, CQ: c.handle()})
	if c.armed != notArmed {
		c.fire()
	}
}

// failOverrun puts queue pairs whose completion queue has overflowed into the error state.
// overflow does not do it itself, since it may run in the middle of a packet of such a queue
// pair.
func (s *shard) failOverrun() {
	d := s.device
	for len(s.mu.overrun) > 0 {
		c := s.mu.overrun[0]
		s.mu.overrun = s.mu.overrun[1:]
		// Modify fails in Reset, where nothing completes.
		for _, q := range sortedPairs(d.mu.queuePairs) {
			if q.completesTo(c) {
				s.runInShard(q.shard, func(time.Duration) {
					if !q.closed {
						_ = q.transport.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState)
					}
				})
			}
		}
		for _, q := range sortedPairs(d.mu.srdPairs) {
			if q.sendCQ == c || q.recvCQ == c {
				s.runInShard(d.main.shard, func(now time.Duration) {
					if !q.closed {
						_ = q.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState, now)
					}
				})
			}
		}
	}
}

// runInShard calls f under the lock of shard of: at once if that is s, whose lock is held, and
// otherwise through its handoff queue.
func (s *shard) runInShard(of *shard, f func(now time.Duration)) {
	if of == s {
		f(s.device.now())
		return
	}
	of.enqueue(handoff{call: f})
}

// pop removes the oldest completion. The returned pointer is valid until the next push.
func (c *completionQueue) pop() *verbs.WC {
	e := c.entries.Pop()
	c.removed(e, c.entries.Len() < c.fresh.all)
	return &e.wc
}

// removed frees what an entry has held that has left the queue.
func (c *completionQueue) removed(e *completion, fresh bool) {
	e.frees.free()
	if fresh {
		c.fresh.all--
		if e.solicited {
			c.fresh.solicited--
		}
	}
	if c.remote {
		c.outstanding.Add(-1)
	}
}

// discardCompletions removes the completions of a queue pair of shard s that is closed or has
// returned to Reset. A program would take them for those of its next connection, or use what it
// has freed with the queue pair. The locks of all shards are held.
func (s *shard) discardCompletions(qpn uint32, queues ...*completionQueue) {
	for _, c := range queues {
		c.discard(qpn)
		if c.shard != s { // others are on their way
			c.shard.enqueue(handoff{call: func(time.Duration) { c.discard(qpn) }})
		}
	}
}

// discard removes the completions of a queue pair.
func (c *completionQueue) discard(qpn uint32) {
	seen := c.entries.Len() - c.fresh.all // entries that are not fresh
	for i := range c.entries.Len() {
		e := *c.entries.Pop()
		var x verbs.WCExtra
		if c.fields != 0 {
			x = *c.extras.Pop()
		}
		if e.wc.QPN == qpn {
			c.removed(&e, i >= seen)
			continue
		}
		*c.entries.Push() = e
		if c.fields != 0 {
			*c.extras.Push() = x
		}
	}
}

// Poll implements verbs.CQ.
func (c *completionQueue) Poll(wc []verbs.WC) (int, error) {
	n, idle, err := c.poll(wc)
	if idle {
		c.device.scheduler.Idle()
	}
	return n, err
}

// poll is Poll. idle: the program is one that polls without a pause, on a simulated host.
func (c *completionQueue) poll(wc []verbs.WC) (n int, idle bool, err error) {
	s := c.lock()
	defer s.mu.Unlock()
	n, err = c.makeProgress(s, len(wc))
	if err != nil {
		return 0, false, err
	}
	for i := range n {
		wc[i] = *c.pop()
		if c.fields != 0 {
			c.extras.Pop()
		}
	}
	return n, n == 0 && c.notify == nil && c.device.scheduler != nil, nil
}

// PollExtended implements verbs.ExtendedCQ.
func (x *extendedQueue) PollExtended(wcs []verbs.WC, extras []verbs.WCExtra) (int, error) {
	c := x.completionQueue
	if len(wcs) != len(extras) {
		return 0, fmt.Errorf("poll completion queue of device %s: the slices have the lengths %d and %d, which must be equal: %w", c.device.cfg.Name, len(wcs), len(extras), verbs.ErrInvalid)
	}
	s := c.lock()
	defer s.mu.Unlock()
	n, err := c.makeProgress(s, len(wcs))
	if err != nil {
		return 0, err
	}
	for i := range n {
		wcs[i], extras[i] = *c.pop(), *c.extras.Pop()
	}
	return n, nil
}

// makeProgress makes progress if the queue holds fewer than n entries, and returns how many of
// the n it holds then.
func (c *completionQueue) makeProgress(s *shard, n int) (int, error) {
	if err := c.checkOpen("poll completion queue"); err != nil {
		return 0, err
	}
	// A program that has armed its queue polls once more before it sleeps. That poll does not
	// mean that more polls follow.
	if c.armed == notArmed {
		s.mu.attendance.Awake()
	}
	if c.entries.Len() < n {
		s.progressFor(c.armed == notArmed)
	}
	if c.overrun {
		s.failOverrun()
		return 0, fmt.Errorf("poll completion queue of %d entries on device %s: the queue overflowed; create it with a larger capacity: %w", c.entries.Depth(), c.device.cfg.Name, verbs.ErrOverrun)
	}
	return min(n, c.entries.Len()), nil
}

// progressFor makes progress for a program. pollsOn: it is going to do so again soon. The lock is
// held.
func (s *shard) progressFor(pollsOn bool) {
	s.mu.attendance.Polls(pollsOn)
	s.progress(s.device.now(), atPolled)
	s.mu.attendance.Polled()
}

// Progress implements cverbs.CQ.
func (c *completionQueue) Progress(sleeps bool) error {
	s := c.lock()
	defer s.mu.Unlock()
	if err := c.checkOpen("make progress for completion queue"); err != nil {
		return err
	}
	s.progressFor(!sleeps)
	s.failOverrun()
	if sleeps {
		s.programSleeps()
	}
	return nil
}

// Arm implements verbs.CQ.
func (c *completionQueue) Arm(solicitedOnly bool) (bool, error) {
	s := c.lock()
	defer s.mu.Unlock()
	if err := c.checkOpen("arm completion queue"); err != nil {
		return false, err
	}
	if c.entries.Len() > 0 || c.overrun {
		return false, nil
	}
	c.arm(solicitedOnly)
	s.programSleeps()
	return true, nil
}

// ArmNext implements cverbs.CQ. A queue that has overflowed notifies at once too, so that the
// program polls and learns of it.
func (c *completionQueue) ArmNext(solicitedOnly bool) error { return c.armNext(solicitedOnly, false) }

// ArmAwake implements cverbs.CQ.
func (c *completionQueue) ArmAwake(solicitedOnly bool) error { return c.armNext(solicitedOnly, true) }

func (c *completionQueue) armNext(solicitedOnly, awake bool) error {
	s := c.lock()
	defer s.mu.Unlock()
	if err := c.checkOpen("arm completion queue"); err != nil {
		return err
	}
	c.arm(solicitedOnly)
	switch {
	case c.overrun || c.fresh.solicited > 0 || c.armed == armedAny && c.fresh.all > 0:
		c.fire()
	case awake:
		s.mu.attendance.Awake()
	default:
		s.programSleeps()
	}
	return nil
}

func (c *completionQueue) arm(solicitedOnly bool) {
	switch {
	case !solicitedOnly:
		c.armed = armedAny
	case c.armed == notArmed:
		c.armed = armedSolicited
	}
}

// programSleeps prepares the shard for a program that sleeps.
func (s *shard) programSleeps() {
	if s.mu.attendance.Sleeps() {
		s.call()
	}
	if s.mu.unacknowledged.Len() > 0 {
		now := s.device.now()
		s.sendDelayedAcks(now)
		s.transmit(now)
	}
}

// Sleeper returns where a goroutine can sleep that waits for the queue; nil: nowhere.
func (c *completionQueue) Sleeper() host.Sleeper {
	if c.device.net.Simulated() {
		return nil
	}
	return c.shard
}

// Pending implements cverbs.CQ.
func (c *completionQueue) Pending() int {
	defer c.lock().mu.Unlock()
	return c.entries.Len()
}

// Resize implements cverbs.CQ.
func (c *completionQueue) Resize(capacity int) error {
	d := c.device
	d.mu.Lock() // queue pairs of other shards ask for room
	defer d.mu.Unlock()
	if err := c.checkOpen("resize completion queue"); err != nil {
		return err
	}
	what := fmt.Sprintf("resize completion queue of %d entries on device %s to %d", c.entries.Depth(), c.device.cfg.Name, capacity)
	switch held := c.entries.Len(); {
	case capacity < 1 || capacity > maxCQE:
		return fmt.Errorf("%s: the capacity must be from 1 to %d: %w", what, maxCQE, verbs.ErrLimit)
	case capacity < held:
		return fmt.Errorf("%s: it holds %d completions; poll them first: %w", what, held, verbs.ErrInvalid)
	}
	c.entries.Resize(capacity)
	c.extras.Resize(capacity)
	return nil
}

// checkOpen returns an error if the queue or its device cannot be used.
func (c *completionQueue) checkOpen(op string) error {
	if c.closed {
		return c.device.closedError(op)
	}
	return c.device.broken(op)
}

// OnCompletion implements verbs.CQ.
func (c *completionQueue) OnCompletion(notify func()) {
	defer c.lock().mu.Unlock()
	c.notify = notify
}

func (c *completionQueue) Close() error {
	d := c.device
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case c.closed:
		return nil
	case c.refs > 0:
		return fmt.Errorf("close completion queue: %d queue pairs use it: %w", c.refs, verbs.ErrInUse)
	}
	c.closed = true
	d.removePoller(c.poller)
	last := len(d.mu.queues) - 1
	d.mu.queues[c.index], d.mu.queues[last].index = d.mu.queues[last], c.index // a search would take long with many
	d.mu.queues[last] = nil
	d.mu.queues = d.mu.queues[:last]
	return nil
}
