package buffers

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/soft"
)

// later keeps what a pool has called later.
type later struct{ f func() }

func (l *later) after(_ time.Duration, f func()) host.Timer {
	l.f = f
	return stopped{}
}

// pass lets an interval pass.
func (l *later) pass() {
	if f := l.f; f != nil {
		l.f = nil
		f()
	}
}

type stopped struct{}

func (stopped) Reset(time.Duration) bool { return false }
func (stopped) Stop() bool               { return false }

func newPool(t *testing.T, bytes, connections int) (*Pool, *later) {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	l := &later{}
	p := NewPool(dev, bytes, connections, l.after)
	t.Cleanup(func() {
		require.NoError(t, p.Close())
		require.Zero(t, p.Held())
		require.NoError(t, dev.Close())
	})
	return p, l
}

// write puts up to n bytes into send memory, and gives them to the device.
func (o *Outbound) write(t *testing.T, n int) (wrote int) {
	for wrote < n {
		room, err := o.Room(n-wrote, unlimited)
		require.NoError(t, err)
		if len(room) == 0 {
			break
		}
		o.Commit(len(room))
		wrote += len(room)
	}
	for {
		if c, _, n := o.Post(1 << 20); c == nil || n == 0 {
			return wrote
		}
	}
}

// unlimited is more than the tests write.
const unlimited = 1 << 30

// acknowledge is what the peer's device does: it has the oldest n bytes.
func (o *Outbound) acknowledge(n int) {
	for _, c := range o.chunks {
		part := min(n, c.posted-c.done)
		o.Acknowledge(c, part)
		n -= part
	}
	o.Release(false)
}

// Connections whose peers acknowledge nothing hold no more than the limit together, and leave memory
// for those that come later.
func TestSendMemoryOfAll(t *testing.T) {
	const bytes, connections = 8 << 20, 100
	p, later := newPool(t, bytes, connections)
	var list []*Outbound
	for i := range connections {
		o := &Outbound{Pool: p}
		n := o.write(t, bytes)
		switch {
		case i == 0:
			require.InDelta(t, bytes/2, n, 512<<10, "one alone gets half")
		case i < 5:
			require.GreaterOrEqual(t, n, largeChunk, "connection %d", i)
		default:
			require.GreaterOrEqual(t, n, SmallestChunk, "connection %d", i)
		}
		require.LessOrEqual(t, p.Held(), bytes)
		list = append(list, o)
	}
	for _, o := range list {
		require.Zero(t, o.write(t, 1))
	}
	for _, o := range list { // none stops
		o.acknowledge(o.held)
		require.Positive(t, o.write(t, bytes))
		require.LessOrEqual(t, p.Held(), bytes)
	}
	for _, o := range list[1:] {
		o.Free()
	}
	held := p.Held()
	later.pass()
	require.Equal(t, held, p.Held(), "it was needed a moment ago")
	later.pass()
	later.pass()
	require.Less(t, p.Held(), held)
	list[0].Free()
	for later.f != nil {
		later.pass()
	}
	require.Zero(t, p.Held())
}

// A connection that writes without pause with the only chunk that it can get uses it again.
func TestOnlyChunk(t *testing.T) {
	p, _ := newPool(t, SendMemoryFor(256), 256)
	o := &Outbound{Pool: p}
	for range 10 {
		require.Equal(t, SmallestChunk, o.write(t, 10_000))
		for _, c := range o.chunks {
			o.Acknowledge(c, c.posted-c.done)
		}
		o.Release(true) // as during a call of Write
		require.Len(t, o.chunks, 1)
	}
	o.Free()
}

// Memory that is used again within an interval stays, so that a busy connection allocates none.
func TestBusySlabStays(t *testing.T) {
	p, later := newPool(t, 8<<20, 4)
	o := &Outbound{Pool: p}
	for range 10 {
		require.Equal(t, 200_000, o.write(t, 200_000))
		o.acknowledge(200_000)
		require.NotZero(t, p.Held())
		later.pass()
	}
}

// Memory that is no longer needed is freed in parts, however much it is. Slabs that cannot be freed are
// tried again, and Close reports only what still cannot be.
func TestTrim(t *testing.T) {
	pd := &domain{}
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	pd.PD = dev.DefaultPD()
	var l later
	const slabs = 50
	p := NewPool(device{dev, pd}, 2*slabs*slabSize, 1, l.after)
	o := &Outbound{Pool: p}
	o.write(t, slabs*slabSize)
	held := p.Held()
	require.Greater(t, held, 2*trimMost*slabSize)
	pd.deregister = errRefused
	o.Free()
	for range 10 {
		l.pass()
		require.Equal(t, held, p.Held())
	}
	pd.deregister = nil
	for l.f != nil {
		l.pass()
		require.GreaterOrEqual(t, p.Held(), held-trimMost*slabSize)
		held = p.Held()
	}
	require.Zero(t, held)
	require.Positive(t, o.write(t, 1))
	o.Free()
	pd.deregister = errRefused
	require.ErrorIs(t, p.Close(), errRefused)
	pd.deregister = nil
	require.NoError(t, p.Close())
	require.NoError(t, dev.Close())
}

// Whatever connections do, the limit holds, and one that has none gets a chunk.
func TestSendMemoryAtRandom(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		connections := 1 + r.IntN(700)
		bytes := SendMemoryFor(connections) + r.IntN(6)*slabSize
		p, later := newPool(t, bytes, connections)
		list := make([]Outbound, connections)
		for range 4000 {
			o := &list[r.IntN(connections)]
			o.Pool = p
			switch r.IntN(8) {
			case 0, 1, 2, 3:
				empty := o.size == 0
				n := o.write(t, 1+r.IntN(1<<r.IntN(20)))
				require.False(t, empty && n == 0, "seed %d: a connection without memory gets none", seed)
			case 4, 5:
				o.acknowledge(r.IntN(o.held + 1))
			case 6:
				o.Free()
			case 7:
				later.pass()
			}
			require.LessOrEqual(t, p.Held(), bytes, "seed %d", seed)
		}
		for i := range list {
			if list[i].Pool != nil {
				list[i].Free()
				require.Zero(t, list[i].size+list[i].small)
			}
		}
		require.Zero(t, p.small.used+p.large.used+p.holders)
	}
}
