package roce

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/spin"
	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/local"
	"github.com/verbena-rdma/verbena/soft/internal/roce/sharedport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/timers"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/verbs"
)

// shard is an independent part of the device: some of its queue pairs and all that they need
// from packet to completion, with its own sockets and lock. Programs that poll on different
// cores therefore do not wait for each other. A queue or a queue pair stays in the shard that
// it was made in. The first shard also has what exists once in a device: datagrams, SRD,
// multicast groups, connection management.
type shard struct {
	device *Device
	index  int
	slot   int // the low bits of the numbers of its queue pairs

	handoffs handoffQueue

	endpoints []*endpoint // one for each entry of the GID table
	sockets   link.WaitSet

	// working is held by the goroutine that waits at the sockets. It guards looked.
	working sync.Mutex
	looked  time.Duration // when such a goroutine looked at the wait set last
	called  chan struct{} // makes the device's goroutine look who does the work
	watch   *time.Timer   // has the device's goroutine look: see attendance.Wakes
	sleeper driver        // for the goroutine that sleeps at the shard
	ended   *atomic.Bool  // see host.Sleeper; the sleeper's

	// mu also guards the state of the shard's queue pairs and queues.
	mu struct {
		sync.Mutex
		ready fifo.List[*queuePair] // those that have something to send, in that order
		// unacknowledged has the queue pairs whose acknowledgement waits for a reply. They are
		// not in ready.
		unacknowledged fifo.List[*queuePair]
		attendance     attendance
		timers         timers.Heap[*queuePair]
		deadline       time.Duration // the earliest of all; zero: none
		wakesAt        time.Duration // until when a goroutine waits at the sockets; zero: none does
		counters       transport.Counters
		rnrWaiters     transport.RNRWaiters
		drops          drops
		unreachable    unreachable
		overrun        []*completionQueue // whose queue pairs are not in the error state yet
		local          local.Peers
		pollers        int  // assigned to this shard
		failed         bool // it cannot wait at its sockets any more
	}
}

// maxShards is how many shards a device can have. The low bits of a queue pair number are the
// slot of its shard: its index, unless the device shares port 4791 with others (sharedport).
const (
	maxShards = link.Slots
	shardBits = maxShards - 1
)

// shardLimit is how many shards are useful: one for each core, but a single one if captures or
// faults need to see packets in order, or for an EFA, which has datagrams only.
func (d *Device) shardLimit() int {
	if d.cfg.EFA || d.capture != nil || faults.Any(d.mu.faults.All) || d.net.Simulated() {
		return 1
	}
	return min(cmp.Or(d.cfg.MaxShards, runtime.GOMAXPROCS(0)), maxShards)
}

// shards are those of a device, and their common lock. It is a sync.Locker.
type shards struct {
	mu   sync.Mutex
	list []*shard
}

// Lock takes the locks of all shards, always in the same order.
func (s *shards) Lock() {
	s.mu.Lock()
	for _, sh := range s.list {
		sh.mu.Lock()
	}
}

// Unlock releases them.
func (s *shards) Unlock() {
	for _, sh := range s.list {
		sh.mu.Unlock()
	}
	s.mu.Unlock()
}

// poller holds the shard of one verbs.CQInit.Poller, which polls completion queues. All of its
// queues are in that shard.
type poller struct {
	shard  *shard
	queues int
}

// shardOf returns the shard for the queues of a poller. A new poller gets the shard with the
// fewest pollers, or a new shard while there are cores for it.
func (d *Device) shardOf(key any) *shard {
	if key == nil {
		return d.main.shard
	}
	if p := d.mu.pollers[key]; p != nil {
		return p.shard
	}
	best := d.main.shard
	for _, s := range d.mu.list {
		if s.mu.pollers < best.mu.pollers {
			best = s
		}
	}
	if best.mu.pollers > 0 && len(d.mu.list) < d.shardLimit() && !d.mu.noMoreShards {
		if s, err := d.addShard(); err == nil {
			best = s
		} else {
			d.mu.noMoreShards = true
			d.log.Debug().Err(err).Str("device", d.cfg.Name).Msg("cannot open another shard: programs that poll on different cores share a lock")
		}
	}
	return best
}

// addPoller counts a completion queue of that poller in the shard.
func (d *Device) addPoller(key any, s *shard) {
	if key == nil {
		return
	}
	p := d.mu.pollers[key]
	if p == nil {
		p = &poller{shard: s}
		d.mu.pollers[key] = p
		s.mu.pollers++
	}
	p.queues++
}

// removePoller undoes addPoller.
func (d *Device) removePoller(key any) {
	p := d.mu.pollers[key]
	if p == nil {
		return
	}
	if p.queues--; p.queues == 0 {
		p.shard.mu.pollers--
		delete(d.mu.pollers, key)
	}
}

// addShard opens another shard. The lock of all shards is held, and includes the new one on
// return.
func (d *Device) addShard() (*shard, error) {
	s, err := d.newShard(len(d.mu.list))
	if err != nil {
		return nil, err
	}
	slots := maxShards
	if slices.ContainsFunc(d.groups, func(g *sharedport.Group) bool { return g != nil }) {
		slots /= 2 // the others are for the first shards of more processes
	}
	if s.slot, err = d.claimSlot(slots); err != nil {
		s.closeEndpoints()
		return nil, err
	}
	for _, first := range d.main.endpoints {
		var e *endpoint
		if e, err = first.share(s); err != nil {
			break
		}
		s.endpoints = append(s.endpoints, e)
	}
	// Steering comes before any use of the shard, so that no packet is lost if it fails.
	for i := 0; err == nil && i < len(s.endpoints); i++ {
		err = d.main.endpoints[i].steer(s)
	}
	if err != nil {
		s.closeEndpoints()
		d.release(s.slot, d.groups)
		return nil, err
	}
	s.mu.Lock()
	d.mu.list = append(d.mu.list, s)
	for _, e := range s.endpoints {
		e.entry.Lift() // the new socket has no filter, and would get none before the restriction ends
	}
	if d.main.mu.local.On() {
		s.openLocal()
	}
	s.start()
	return s, nil
}

// newShard makes a shard without sockets.
func (d *Device) newShard(index int) (s *shard, err error) {
	s = &shard{device: d, index: index, called: make(chan struct{}, 1), watch: time.NewTimer(time.Hour)}
	s.watch.Stop()
	s.sleeper = driver{spinning: spin.New(d.cfg.Spin), over: func() bool { return s.ended.Load() || d.mu.closed }}
	if !d.net.Simulated() {
		s.sockets, err = link.NewWaitSet(false)
	}
	return s, err
}

// start starts the shard's goroutine.
func (s *shard) start() {
	d := s.device
	if d.net.Simulated() {
		s.sockets, s.mu.wakesAt = s.endpoints[0].socket.WaitSet(), never
		for _, e := range s.endpoints {
			d.net.Serve(e.socket, e.work)
		}
		return
	}
	d.running.Add(1)
	go s.run()
}

func (s *shard) closeEndpoints() error {
	var errs []error
	for _, e := range s.endpoints {
		errs = append(errs, e.socket.Close())
	}
	if !s.device.net.Simulated() {
		errs = append(errs, s.sockets.Close())
	}
	s.call()
	return errors.Join(errs...)
}

// shardFor returns the shard for a queue pair: the first for datagrams, otherwise that of its
// shared receive queue or, without one, that of its send queue. The queue pair stays there;
// remoteQueue describes the cost if its completion queues are in other shards.
func (d *Device) shardFor(t verbs.QPType, send *completionQueue, receives *sharedReceiveQueue) (*shard, error) {
	connected := t == verbs.RC || t == verbs.UC || t == verbs.XRCSend
	switch {
	case receives != nil && (connected || receives.shard == d.main.shard):
		return receives.shard, nil
	case receives != nil:
		return nil, fmt.Errorf("its shared receive queue belongs to a poller, and a queue pair of type %v cannot: leave SRQInit.Poller nil: %w", t, verbs.ErrInvalid)
	case connected:
		return send.shard, nil
	}
	return d.main.shard, nil
}
