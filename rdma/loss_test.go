//go:build linux && cgo && verbs

package rdma_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// A flow keeps slots messages under way from a to b, each at its own place in
// the memory of both, until all have been sent.
type flow struct {
	r     *rig
	begun int
	ended int // at a
	taken int // at b
	err   error
}

const (
	flowMessages = 24
	flowSlots    = 8
	flowLength   = 100_003
	flowStride   = memorySize / flowSlots
)

func slot(m *mmap.Map, i int) []byte {
	return m.Bytes()[i%flowSlots*flowStride:][:flowLength]
}

// next has a message fill its slot and go, or frees the task.
func (f *flow) next(from *mmap.Map, submit, free func() error) {
	if f.begun == flowMessages || f.err != nil {
		require.NoError(f.r.t, free())
		return
	}
	fill(slot(from, f.begun), byte(f.begun))
	f.begun++
	require.NoError(f.r.t, submit())
}

func (f *flow) checked(where *mmap.Map, i int) {
	want := make([]byte, flowLength)
	fill(want, byte(i))
	same(f.r.t, want, slot(where, i))
}

func (f *flow) fail(err error) {
	if f.err == nil {
		f.err = err
	}
	f.ended++
}

// flows are one for each operation: prepare makes what is needed of pools, and
// returns what begins the flow.
var flows = []struct {
	name    string
	prepare func(f *flow) (begin func())
}{
	{"writes", (*flow).writes},
	{"reads", (*flow).reads},
	{"sends", (*flow).sends},
	{"adds", (*flow).adds},
}

func (f *flow) writes() func() {
	a, b := f.r.a, f.r.b
	pool := must(a.ctx.Pool(flowSlots, func(task *rdma.Task) {
		f.checked(b.mem, f.ended)
		f.ended++
		f.next(a.mem, func() error { return task.Submit() }, task.Free)
	}, func(task *rdma.Task, err error) {
		f.fail(err)
		require.NoError(f.r.t, task.Free())
	}))
	return func() {
		for i := range flowSlots {
			task := must(pool.Write(a.conns[0], a.bufs.Source(a.mem, i*flowStride, flowLength), a.bufs.Target(a.peer, i*flowStride, flowLength)))
			f.next(a.mem, func() error { return task.Submit() }, task.Free)
		}
	}
}

func (f *flow) reads() func() {
	a, b := f.r.a, f.r.b
	pool := must(a.ctx.Pool(flowSlots, func(task *rdma.Task) {
		f.checked(a.mem, f.ended)
		f.ended++
		f.next(b.mem, func() error { return task.Submit() }, task.Free)
	}, func(task *rdma.Task, err error) {
		f.fail(err)
		require.NoError(f.r.t, task.Free())
	}))
	return func() {
		for i := range flowSlots {
			task := must(pool.Read(a.conns[0], a.bufs.Source(a.peer, i*flowStride, flowLength), a.bufs.Target(a.mem, i*flowStride, flowLength)))
			f.next(b.mem, func() error { return task.Submit() }, task.Free)
		}
	}
}

// A send that finds no receive, since b has not polled what the last ones
// brought, is sent again.
func (f *flow) sends() func() {
	a, b := f.r.a, f.r.b
	pool := must(a.ctx.Pool(flowSlots, func(task *rdma.Task) {
		f.ended++
		f.next(a.mem, func() error { return task.Submit() }, task.Free)
	}, func(task *rdma.Task, err error) {
		f.fail(err)
		require.NoError(f.r.t, task.Free())
	}))
	receives := must(b.ctx.ReceivePool(flowSlots, func(task *rdma.ReceiveTask) {
		f.checked(b.mem, f.taken)
		f.taken++
		require.NoError(f.r.t, task.Submit())
	}, func(task *rdma.ReceiveTask, _ error) { // flushed at the end
		require.NoError(f.r.t, task.Free())
	}))
	return func() {
		for i := range flowSlots {
			require.NoError(f.r.t, must(receives.Alloc(b.bufs.Target(b.mem, i*flowStride, flowLength))).Submit())
		}
		for i := range flowSlots {
			task := must(pool.Send(a.conns[0], a.bufs.Source(a.mem, i*flowStride, flowLength)))
			f.next(a.mem, func() error { return task.Submit() }, task.Free)
		}
	}
}

// adds all go to one word: each has to be done once, and in order.
func (f *flow) adds() func() {
	a, b := f.r.a, f.r.b
	word := f.r.b.mem.Bytes()[memorySize-8:]
	pool := must(a.ctx.Pool(flowSlots, func(task *rdma.Task) {
		require.EqualValues(f.r.t, f.ended, task.Original())
		f.ended++
		require.LessOrEqual(f.r.t, uint64(f.ended), binary.NativeEndian.Uint64(word))
		f.next(b.mem, func() error { return task.Submit() }, task.Free)
	}, func(task *rdma.Task, err error) {
		f.fail(err)
		require.NoError(f.r.t, task.Free())
	}))
	return func() {
		for range flowSlots {
			task := must(pool.FetchAdd(a.conns[0], a.bufs.Target(a.peer, memorySize-8, 8), 1))
			f.next(b.mem, func() error { return task.Submit() }, task.Free)
		}
	}
}

// What the software device loses and swaps is repeated, by it and by rxe: every
// byte right, every message once. Short: each operation one way.
func TestGuestLoss(t *testing.T) {
	requireGuest(t)
	repeated := uint64(0)
	for i, on := range devicePairs[1:3] {
		for j, each := range flows {
			if testing.Short() && (i+j)%2 != 0 {
				continue
			}
			t.Run(on.name+", "+each.name, func(t *testing.T) {
				f := &flow{r: newRigOn(t, on.a(t), on.b(t), rdma.Config{}, rdma.Config{})}
				for _, s := range []*side{f.r.a, f.r.b} {
					s.ctx.WatchConnections(func(_ *rdma.Connection, state rdma.ConnectionState, err error) {
						if state == rdma.Failed {
							f.err = errors.Join(f.err, err)
						}
					})
				}
				begin := each.prepare(f)
				t.Cleanup(func() { logCounters(t, f.r.a.dev, f.r.b.dev) }) // of a test that has failed
				f.r.connect(1)
				lossy, faults := f.r.soft(), soft.Faults{Loss: 0.05, Reorder: 0.05, Seed: 3}
				if on.name == "rxe to soft" {
					// rxe counts gaps and time-outs until a whole message is acknowledged, and gives up at the
					// seventh. A message has 25 packets.
					faults.Loss, faults.Reorder = 0.01, 0.01
				}
				require.NoError(t, lossy.SetFaults(faults))
				begin()
				f.r.until("all has been sent", func() bool { return f.err != nil || f.ended == flowMessages })
				// What docs/adapters.md says of rxe and short time-outs, as either end sees it.
				invalid := errors.Is(f.err, rdma.ErrRemoteInvalid) || errors.Is(f.err, rdma.ErrLocalLength) || errors.Is(f.err, rdma.ErrPeerRefused)
				if on.name == "rxe to soft" && invalid {
					t.Logf("rxe has lost its place: %v", f.err)
					return
				}
				require.NoError(t, f.err)
				if each.name == "sends" {
					f.r.until("all has arrived", func() bool { return f.taken == flowMessages })
				}
				require.NoError(t, lossy.SetFaults(soft.Faults{}))
				repeated += counter(t, lossy, "duplicate_request") + counter(t, lossy, "completer_retry_err")
			})
		}
	}
	require.NotZero(t, repeated)
}

// soft is the software device of the two.
func (r *rig) soft() *soft.Device {
	d, ok := r.a.dev.(*soft.Device)
	if !ok {
		d = r.b.dev.(*soft.Device)
	}
	return d
}

// logCounters prints what the devices have counted, where the test has failed.
func logCounters(t *testing.T, devs ...verbs.Device) {
	for _, dev := range devs {
		if t.Failed() {
			t.Logf("%s: %v", dev.Name(), must(dev.Counters()))
		}
	}
}
