package hosts

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errRefused = errors.New("refused")

// network has hosts that answer, hosts that refuse, and hosts that do not answer.
type network struct{ tried []string }

func (n *network) dial(ctx context.Context, host, addr string) (string, error) {
	n.tried = append(n.tried, host)
	switch host[0] {
	case 'a':
		return addr, nil
	case 'r':
		return "", errRefused
	}
	<-ctx.Done()
	return "", context.Cause(ctx)
}

// The hosts share the time until the deadline, and one that does not answer leaves some to those
// behind it.
func TestDialSharesTime(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		hosts    []string
		limit    time.Duration // zero: none
		addr     string
		err      error
		took     time.Duration
		attempts int
	}{
		{hosts: []string{"answers"}, addr: "answers:7", attempts: 1},
		{hosts: []string{"refuses", "answers"}, addr: "answers:7", attempts: 2},
		{hosts: []string{"refuses", "refuses too"}, err: errRefused, attempts: 2},
		{hosts: []string{"silent", "answers"}, limit: 10 * s, addr: "answers:7", took: 5 * s, attempts: 2},
		{hosts: []string{"silent", "silent too", "answers"}, limit: 30 * s, addr: "answers:7", took: 20 * s, attempts: 3},
		{hosts: []string{"refuses", "silent", "answers"}, limit: 30 * s, addr: "answers:7", took: 15 * s, attempts: 3},
		{hosts: []string{"silent", "refuses"}, limit: 10 * s, err: context.DeadlineExceeded, took: 5 * s, attempts: 2},
		{hosts: []string{"refuses", "silent"}, limit: 10 * s, err: errRefused, took: 10 * s, attempts: 2},
		{hosts: []string{"silent", "answers"}, limit: 3 * s, addr: "answers:7", took: 2 * s, attempts: 2},
		{hosts: []string{"silent", "answers"}, limit: s, err: context.DeadlineExceeded, took: s, attempts: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			if c.limit > 0 {
				ctx, cancel = context.WithTimeout(context.Background(), c.limit)
			}
			defer cancel()
			var n network
			begin := time.Now()
			addr, err := Dial(ctx, c.hosts, "7", n.dial)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.addr, addr)
			require.Equal(t, c.took, time.Since(begin))
			require.Equal(t, c.hosts[:c.attempts], n.tried)
		})
	}
}

// The host of a listener is an address; those that stand for all are one.
func TestListen(t *testing.T) {
	list, port, err := ToListen("localhost:7")
	require.NoError(t, err)
	require.Equal(t, "7", port)
	require.Equal(t, "127.0.0.1", list[0])
	list, _, err = Resolve(t.Context(), "[::1]:7")
	require.NoError(t, err)
	require.Equal(t, []string{"::1"}, list)
	for _, host := range []string{"", "0.0.0.0", "[::]", "[::ffff:0.0.0.0]"} {
		list, _, err := ToListen(host + ":7")
		require.NoError(t, err)
		require.Equal(t, []string{""}, list)
	}
	dev, err := Device("", "127.0.0.1")
	require.NoError(t, err)
	require.Contains(t, dev, "soft-lo")
	dev, err = Device("mlx5_0", "127.0.0.1")
	require.NoError(t, err)
	require.Equal(t, "mlx5_0", dev)
}
