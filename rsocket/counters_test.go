package rsocket_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/metrics"
	"github.com/verbena-rdma/verbena/rsocket"
)

// Connections, their stack and a set of stacks count what is written and read, and list the
// connections.
func TestCounters(t *testing.T) {
	const size = 50_000
	set := rsocket.NewStacks("", rsocket.Config{}) // those of Listen and Dial may be left from another test
	l, err := set.Listen("127.0.0.1:0")
	require.NoError(t, err)
	near, err := set.Dial(context.Background(), l.Addr().String())
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	far := accepted.(*rsocket.Conn)
	n, err := io.Copy(near, bytes.NewReader(make([]byte, size)))
	require.NoError(t, err)
	require.EqualValues(t, size, n)
	_, err = io.ReadFull(far, make([]byte, size-1))
	require.NoError(t, err)
	require.EqualValues(t, size, near.Counters().Written)
	require.EqualValues(t, size-1, far.Counters().Read)
	require.EqualValues(t, 1, far.Counters().Unread)
	require.GreaterOrEqual(t, far.Counters().ReceivedBytes, uint64(size))

	stacks := set.Stacks()
	require.NotEmpty(t, stacks)
	var stack *rsocket.Stack
	for _, s := range stacks {
		if len(s.Conns()) == 2 {
			stack = s
		}
	}
	require.NotNil(t, stack)
	require.Contains(t, stack.Conns(), near)
	c := stack.Counters()
	require.Equal(t, []uint64{2, 1, 1}, []uint64{c.Connections, c.Accepted, c.Dialled})
	kinds := map[string]int{}
	for o := range set.Metrics(true) {
		if kinds[o.Kind]++; o.Kind == "stream" {
			require.Equal(t, "established", o.State)
			require.Contains(t, []string{near.LocalAddr().String(), far.LocalAddr().String()}, o.Local)
			require.NotEmpty(t, o.Peer)
		}
	}
	require.Equal(t, 2, kinds["stream"])
	require.Equal(t, len(stacks), kinds["device"])
	var source metrics.Source = stack
	require.Len(t, slices.Collect(source.Metrics(false)), 1)
	require.NoError(t, errors.Join(near.Close(), far.Close(), l.Close(), set.Close()))
	require.Empty(t, set.Stacks())
	var kept []metrics.Object
	for _, o := range metrics.Totals(set) {
		if o.Name == stack.Device().Name() {
			kept = append(kept, o)
		}
	}
	require.Len(t, kept, 1)
	for _, n := range kept[0].Counters {
		switch n.Name {
		case "connections_dialled":
			require.EqualValues(t, 1, n.Value)
		case "sent_bytes":
			require.GreaterOrEqual(t, n.Value, uint64(size))
		default:
			require.True(t, !n.Gauge || n.Value == 0, n.Name)
		}
	}
	require.EqualValues(t, size, near.Counters().Written)
}
