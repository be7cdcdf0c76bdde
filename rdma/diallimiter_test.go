package rdma

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma/internal/dialling"
	"github.com/verbena-rdma/verbena/soft"
)

// manyDialsTest is a context that dials another one many times at the same moment.
type manyDialsTest struct {
	t      *testing.T
	engine *pe.Engine
	x, y   *Connections
	ready  [2]int
	failed []error
}

func newManyDialsTest(t *testing.T, n int, cfg ListenConfig) (*manyDialsTest, string) {
	d := &manyDialsTest{t: t, engine: pe.New(pe.Config{})}
	for i, c := range []**Connections{&d.x, &d.y} {
		dev, err := soft.Open(soft.Config{})
		require.NoError(t, err)
		*c, err = New(dev, Config{Engine: d.engine, MaxConnections: n})
		require.NoError(t, err)
		require.NoError(t, (*c).Start())
		(*c).OnConnection(func(_ *Connection, s ConnectionState, err error) {
			switch s {
			case Ready:
				d.ready[i]++
			case Failed:
				d.failed = append(d.failed, err)
			}
		})
		t.Cleanup(func() {
			require.NoError(t, (*c).Close())
			require.NoError(t, dev.Close())
		})
	}
	d.until(func() bool { return d.x.State() == pe.Running && d.y.State() == pe.Running })
	l, err := d.y.Listen(":0", cfg)
	require.NoError(t, err)
	return d, netip.AddrPortFrom(d.y.GID().GID.Addr(), l.Addr().Port()).String()
}

func (d *manyDialsTest) until(done func() bool) {
	d.t.Helper()
	for !done() {
		_, err := d.engine.Progress()
		require.NoError(d.t, err)
		require.Empty(d.t, d.failed)
	}
}

// count returns how many dials to an address are outstanding, and how many wait for their turn.
func (d *manyDialsTest) count(addr string) [2]int {
	outstanding, waiting := d.x.manager.limiter.Count(netip.MustParseAddrPort(addr))
	return [2]int{outstanding, waiting}
}

// Of dials to one address so many are under way at a time, in the order in which they came;
// those that are given up before their turn take none.
func TestDialsArePaced(t *testing.T) {
	const n = dialling.MaxOutstanding + 200
	d, addr := newManyDialsTest(t, n, ListenConfig{})
	var conns []*Connection
	for range n {
		conn, err := d.x.Dial(addr, DialConfig{})
		require.NoError(t, err)
		conns = append(conns, conn)
	}
	require.Len(t, d.x.manager.ids, dialling.MaxOutstanding)
	require.Equal(t, [2]int{dialling.MaxOutstanding, n - dialling.MaxOutstanding}, d.count(addr))
	require.NoError(t, conns[n-1].Close())
	require.NoError(t, conns[0].Close())
	require.Equal(t, n-dialling.MaxOutstanding-1, d.count(addr)[1])
	d.until(func() bool {
		assert.LessOrEqual(t, d.count(addr)[0], dialling.MaxOutstanding)
		return d.ready[0] == n-2
	})
	require.Zero(t, d.count(addr))
	require.False(t, d.x.manager.limiter.Busy())
}

// If the peer's program answers no request before all have arrived, all requests are sent.
func TestDialsToAPeerThatWaitsForAll(t *testing.T) {
	const n = dialling.MaxOutstanding + 50
	var requests []*ConnectRequest
	d, addr := newManyDialsTest(t, n, ListenConfig{OnRequest: func(q *ConnectRequest) { requests = append(requests, q) }})
	for range n {
		_, err := d.x.Dial(addr, DialConfig{})
		require.NoError(t, err)
	}
	d.until(func() bool { return len(requests) == n })
	for _, q := range requests {
		_, err := q.Accept(AcceptConfig{})
		require.NoError(t, err)
	}
	d.until(func() bool { return d.ready == [2]int{n, n} })
	require.Zero(t, d.count(addr))
}

// Dials that wait for their turn end with the context.
func TestDialsWaitWhenTheContextStops(t *testing.T) {
	const n = dialling.MaxOutstanding + 50
	d, addr := newManyDialsTest(t, n, ListenConfig{OnRequest: func(*ConnectRequest) {}})
	for range n {
		_, err := d.x.Dial(addr, DialConfig{})
		require.NoError(t, err)
	}
	require.NoError(t, d.x.Stop())
	d.until(func() bool { return d.x.State() == pe.Idle })
	require.Zero(t, d.count(addr))
}
