package rdma_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/syncevent"
)

// Blocks of several packets go through a ring of places.
const (
	orderBlocks = 200
	orderPlaces = 4
	orderSize   = 3 * 4096
)

// orderTest writes one block after the other, each full of its number, and
// notifies the peer after each without waiting for anything.
type orderTest struct {
	*rig
	own     *syncevent.Event
	writes  [orderPlaces]*rdma.Task
	notices [orderPlaces]*rdma.Task
	checked atomic.Uint64 // blocks that the peer has seen
	failure error
}

// Whoever has waited for a notification finds the data of all earlier writes of
// the same connection, also over a network that loses, repeats and reorders
// packets.
func TestNotificationComesAfterData(t *testing.T) {
	for name, faults := range map[string]soft.Faults{
		"good network": {},
		"bad network":  {Loss: 0.03, Duplicate: 0.05, Reorder: 0.1},
	} {
		for _, adds := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/adds %v", name, adds), func(t *testing.T) {
				o := newOrderTest(t, adds)
				for i, s := range []*side{o.a, o.b} {
					faults.Seed = uint64(i + 1)
					require.NoError(t, s.dev.(*soft.Device).SetFaults(faults))
				}
				o.run()
			})
		}
	}
}

func newOrderTest(t *testing.T, adds bool) *orderTest {
	o := &orderTest{rig: newRig(t, rdma.Config{}, rdma.Config{})}
	writes := must(o.a.ctx.Pool(orderPlaces, func(*rdma.Task) {}, func(_ *rdma.Task, err error) { o.failure = err }))
	setPool := must(o.a.ctx.Pool(orderPlaces, func(*rdma.Task) {}, func(_ *rdma.Task, err error) { o.failure = err }))
	addPool := must(o.a.ctx.Pool(orderPlaces, func(*rdma.Task) {}, func(_ *rdma.Task, err error) { o.failure = err }))
	o.connect(1)
	own, seen := o.event(open)
	o.own = own
	conn := o.a.conns[0]
	for i := range orderPlaces {
		off := i * orderSize
		o.writes[i] = must(writes.Write(conn, o.a.bufs.Source(o.a.mem, off, orderSize), o.a.bufs.Target(o.a.peer, off, orderSize)))
		if adds {
			o.notices[i] = must(addPool.SyncEventAdd(conn, seen, 1))
		} else {
			o.notices[i] = must(setPool.SyncEventSet(conn, seen, 0))
		}
	}
	t.Cleanup(func() { // before the contexts are stopped
		for i := range orderPlaces {
			o.until("nothing is in flight", func() bool { return !o.writes[i].InFlight() && !o.notices[i].InFlight() })
			require.NoError(t, rdma.FreeAll([]*rdma.Task{o.writes[i], o.notices[i]}))
		}
	})
	return o
}

func (o *orderTest) run() {
	o.t.Helper()
	ctx, stop := context.WithCancel(o.t.Context())
	seen := make(chan error, 1)
	go func() { seen <- o.watch(ctx) }()
	next := uint64(1)
	deadline := time.Now().Add(5 * time.Minute)
	for len(seen) == 0 && o.failure == nil && time.Now().Before(deadline) {
		for next <= orderBlocks && o.send(next) {
			next++
		}
		_, err := o.engine.Progress()
		require.NoError(o.t, err)
	}
	stop()
	require.NoError(o.t, o.failure)
	require.NoError(o.t, <-seen)
}

// send writes a block and notifies of it, if its place is free.
func (o *orderTest) send(n uint64) bool {
	i := n % orderPlaces
	if n > o.checked.Load()+orderPlaces || o.writes[i].InFlight() || o.notices[i].InFlight() {
		return false
	}
	block := o.a.mem.Bytes()[i*orderSize:][:orderSize]
	for at := 0; at < len(block); at += 8 {
		binary.NativeEndian.PutUint64(block[at:], n)
	}
	if set := o.notices[i]; set.Operation() == rdma.OpSyncEventSet {
		require.NoError(o.t, set.SetValue(n))
	}
	_, err := rdma.SubmitAll([]*rdma.Task{o.writes[i], o.notices[i]}, 0)
	require.NoError(o.t, err)
	return true
}

// watch is the peer: it waits, and finds every block that it was notified of.
func (o *orderTest) watch(ctx context.Context) error {
	for last := uint64(0); last < orderBlocks; {
		v, err := o.own.Wait(ctx, syncevent.Greater(last))
		if err != nil {
			return err
		}
		for n := last + 1; n <= v; n++ {
			block := o.b.mem.Bytes()[n%orderPlaces*orderSize:][:orderSize]
			for at := 0; at < len(block); at += 8 {
				if got := binary.NativeEndian.Uint64(block[at:]); got != n {
					return fmt.Errorf("notified of block %d, found %d at %d of block %d", v, got, at, n)
				}
			}
		}
		o.checked.Store(v)
		last = v
	}
	return nil
}
