package buffers

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errRefused = errors.New("refused")

// domain is a protection domain whose memory regions can fail to be made and to be closed.
type domain struct {
	verbs.PD
	register, deregister error
}

func (d *domain) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	if d.register != nil {
		return nil, d.register
	}
	mr, err := d.PD.RegMR(mem, access)
	return region{mr, d}, err
}

// device is a software device with that domain.
type device struct {
	*soft.Device
	pd *domain
}

func (d device) DefaultPD() verbs.PD { return d.pd }

type region struct {
	verbs.MR
	of *domain
}

func (r region) Close() error {
	if r.of.deregister != nil {
		return r.of.deregister
	}
	return r.MR.Close()
}

// connection is the receive memory of one connection, with a peer that fills it.
type connection struct {
	t    *testing.T
	base Base
	Inbound
	now time.Time
}

func newMemory(t *testing.T, growth int) (*Memory, *domain) {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	pd := &domain{PD: dev.DefaultPD()}
	return NewMemory(device{dev, pd}, pd, growth), pd
}

func connect(t *testing.T, m *Memory) *connection {
	base, err := m.NewBase()
	require.NoError(t, err)
	return &connection{t, base, m.NewInbound(base), time.Unix(1, 0)}
}

const largest = 256 << 10

// fill fills the buffer that the next byte arrives in, the quicker the faster, and lets the peer
// know of the buffers that are due.
func (c *connection) fill(took time.Duration) {
	c.Fill((c.Room()+1)/2, func() time.Time { return c.now })
	for c.Next(2*largest) != nil {
	}
	c.now = c.now.Add(took)
	c.Fill(c.Room(), nil)
}

// read reads all, and lets the peer know of the buffers that are due.
func (c *connection) read() {
	for c.Available() > 0 {
		require.Len(c.t, c.Unread(), c.Available())
		c.Consume(c.Available())
	}
	for c.Next(2*largest) != nil {
	}
}

func (c *connection) end() error { return errors.Join(c.Release(), c.memory.CloseBase(c.base)) }

// Receive memory grows while it is filled fast, up to the limit of the connection, and shrinks to
// what the connection began with, and a small buffer.
func TestGrowAndShrink(t *testing.T) {
	m, _ := newMemory(t, 100<<20)
	c := connect(t, m)
	require.Equal(t, Smallest, m.Held())
	for range 12 {
		c.fill(time.Millisecond)
		c.read()
		require.LessOrEqual(t, c.size, 2*largest)
	}
	require.Equal(t, largest, c.Room())
	require.LessOrEqual(t, m.Held(), Smallest+2*largest)
	for range 20 {
		c.fill(time.Minute)
		c.read()
	}
	require.LessOrEqual(t, m.Held(), 2*Smallest)
	require.NoError(t, c.end())
	require.Zero(t, m.Held())
	require.EqualValues(t, 100<<20, m.growth.Load())
}

// A connection with little data gets no memory beside its first buffer.
func TestLittleData(t *testing.T) {
	m, _ := newMemory(t, 100<<20)
	c := connect(t, m)
	now := func() time.Time { return c.now }
	c.Fill(c.Room()/2-1, now)
	require.Nil(t, c.Next(2*largest))
	c.Fill(1, now)
	require.NotNil(t, c.Next(2*largest))
	require.Nil(t, c.Next(2*largest), "two are announced")
	require.NoError(t, c.end())
}

// A connection that does not read gets no more than its limit, and goes on afterwards.
func TestNotRead(t *testing.T) {
	m, _ := newMemory(t, 100<<20)
	c := connect(t, m)
	for c.Room() > 0 {
		c.fill(time.Millisecond)
		require.LessOrEqual(t, m.Held(), Smallest+2*largest)
	}
	require.Nil(t, c.Next(2*largest))
	c.read()
	require.Positive(t, c.Room())
	require.NoError(t, c.end())
}

// The memory of all connections has a limit. Connections share it, those that come late get a part,
// and one without any goes on with its first buffer.
func TestLimitOfAll(t *testing.T) {
	const growth = 2 << 20
	m, _ := newMemory(t, growth)
	var list []*connection
	for range 100 {
		list = append(list, connect(t, m))
	}
	begin := m.Held()
	require.Equal(t, 100*Smallest, begin)
	for round := range 10 {
		for i, c := range list {
			require.Positive(t, c.Room(), "connection %d stands still in round %d", i, round)
			c.fill(time.Millisecond)
			c.read()
			require.LessOrEqual(t, m.Held(), begin+growth)
			if round == 9 && i == 5 {
				require.Greater(t, c.Room(), Smallest)
			}
		}
	}
	require.Greater(t, m.Held(), begin+growth-Smallest, "it is all used")
	for _, c := range list[:50] {
		require.NoError(t, c.end())
	}
	before := list[99].Room()
	for range 5 {
		list[99].fill(time.Millisecond)
		list[99].read()
	}
	require.Greater(t, list[99].Room(), before, "there is memory again")
	for _, c := range list[50:] {
		require.NoError(t, c.end())
	}
	require.Zero(t, m.Held())
	require.EqualValues(t, growth, m.growth.Load())
}

// A connection gets the memory of one that has ended, with nothing in it, and with another key. So much of
// it is kept, and none after Close.
func TestBaseOfAnEndedConnection(t *testing.T) {
	for name, wrapped := range map[string]bool{"the device changes keys": false, "it registers again": true} {
		t.Run(name, func(t *testing.T) {
			m, pd := newMemory(t, 0)
			if !wrapped {
				m = NewMemory(m.device.(device).Device, pd.PD, 0)
			}
			first := newBase(t, m)
			for i := range first.Bytes() {
				first.Bytes()[i] = 7
			}
			require.NoError(t, m.CloseBase(first))
			require.Zero(t, m.Held())
			next := newBase(t, m)
			require.Same(t, first.Map, next.Map)
			require.Equal(t, make([]byte, Smallest), next.Bytes())
			require.NotEqual(t, first.Key, next.Key)
			key, err := next.ExportKey(m.pd)
			require.NoError(t, err)
			require.Equal(t, key, next.Key)
			require.Equal(t, Smallest, m.Held())

			list := []Base{next}
			for range 2 * maxKept {
				list = append(list, newBase(t, m))
			}
			for _, b := range list {
				require.NoError(t, m.CloseBase(b))
			}
			require.Zero(t, m.Held())
			open := func() (n int) {
				for _, b := range list {
					if b.Bytes() != nil {
						n++
					}
				}
				return n
			}
			require.Equal(t, maxKept, open())
			used := newBase(t, m)
			require.NoError(t, m.Close())
			require.Equal(t, 1, open(), "the one in use")
			require.NoError(t, m.CloseBase(used))
			require.Zero(t, open())
		})
	}
}

func newBase(t *testing.T, m *Memory) Base {
	b, err := m.NewBase()
	require.NoError(t, err)
	return b
}

// Memory that the device has closed is not given to a connection.
func TestBaseOfAClosedDevice(t *testing.T) {
	m, _ := newMemory(t, 0)
	require.NoError(t, m.CloseBase(newBase(t, m)))
	require.NoError(t, m.device.(device).Device.Close())
	_, err := m.NewBase()
	require.ErrorIs(t, err, verbs.ErrClosed)
}

// Where the system has no memory, a connection goes on with what it has. The reason is kept.
func TestNoMemory(t *testing.T) {
	m, pd := newMemory(t, 100<<20)
	c := connect(t, m)
	pd.register = errRefused
	for range 10 {
		require.Positive(t, c.Room())
		c.fill(time.Millisecond)
		c.read()
	}
	require.Equal(t, Smallest, m.Held())
	require.EqualValues(t, 100<<20, m.growth.Load())
	pd.register = nil
	c.fill(time.Millisecond)
	require.Greater(t, m.Held(), Smallest)
	require.ErrorIs(t, c.end(), errRefused)
	require.Zero(t, m.Held())
}

// A buffer that cannot be released stays with its connection, and costs it no other buffer.
func TestReleaseFails(t *testing.T) {
	m, pd := newMemory(t, 100<<20)
	c := connect(t, m)
	for range 12 {
		c.fill(time.Millisecond)
		c.read()
	}
	held := m.Held()
	pd.deregister = errRefused
	for range 6 {
		c.fill(time.Minute)
		c.read()
		require.Positive(t, c.Room())
	}
	require.GreaterOrEqual(t, m.Held(), held, "nothing was released")
	pd.deregister = nil
	for range 2 {
		c.fill(time.Minute)
		c.read()
	}
	require.Less(t, m.Held(), held, "it was tried again")
	require.ErrorIs(t, c.end(), errRefused)
	require.Zero(t, m.Held())
	require.EqualValues(t, 100<<20, m.growth.Load())
}

// When the peer has given its buffers back, only data that has not been read keeps memory, and the
// connection begins again with its first buffer.
func TestWithdrawn(t *testing.T) {
	for name, unread := range map[string]int{"all read": 0, "not all read": 1000} {
		t.Run(name, func(t *testing.T) {
			m, _ := newMemory(t, 100<<20)
			c := connect(t, m)
			for range 12 {
				c.fill(time.Millisecond)
				c.read()
			}
			require.Greater(t, m.Held(), largest)
			require.True(t, c.Grown())
			if unread > 0 {
				c.Fill(unread, func() time.Time { return c.now })
			}
			require.False(t, c.Idle(), "data has arrived")
			c.Mark()
			require.True(t, c.Idle())
			c.Withdrawn()
			require.False(t, c.Grown())
			require.Zero(t, c.Room(), "the peer has no buffer")
			require.Equal(t, unread, c.Available())
			if unread > 0 {
				c.Consume(unread)
			}
			require.Equal(t, Smallest, m.Held())
			b := c.Next(2 * largest)
			require.Same(t, c.first, b)
			require.Equal(t, c.size, c.Room())
			for range 12 { // it grows again
				c.fill(time.Millisecond)
				c.read()
			}
			require.Equal(t, largest, c.Room())
			c.Withdrawn()
			require.NoError(t, c.end())
			require.Zero(t, m.Held())
			require.EqualValues(t, 100<<20, m.growth.Load())
		})
	}
}
