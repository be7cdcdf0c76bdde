package metrics_test

import (
	"encoding/json"
	"io"
	"iter"
	"net"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/statsocket"
	"github.com/verbena-rdma/verbena/metrics"
	"github.com/verbena-rdma/verbena/verbs"
)

// many is a source of many connections.
type many int

func (m many) Metrics(bool) iter.Seq[metrics.Object] {
	return func(yield func(metrics.Object) bool) {
		more := yield(metrics.Object{Kind: "context", Name: "many", Counters: []verbs.Counter{{Name: "n", Value: uint64(m), Help: "a number"}}})
		for i := many(0); more && i < m; i++ {
			more = yield(metrics.Object{Kind: "connection", Counters: []verbs.Counter{{Name: "n", Help: "a number"}}})
		}
	}
}

// serve serves n connections, and returns the name of the socket.
func serve(t *testing.T, n many) (name string, s io.Closer) {
	before, err := statsocket.Names()
	require.NoError(t, err)
	s, err = metrics.Serve(n)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	list, err := statsocket.Names()
	require.NoError(t, err)
	for _, one := range list {
		if !slices.Contains(before, one) && isOwn(t, one) {
			return one, s
		}
	}
	require.Fail(t, "the socket is not in the list")
	return "", nil
}

// isOwn reports whether a socket is this process's. It reads nothing: others may belong to tests of
// other packages.
func isOwn(t *testing.T, name string) bool {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: name})
	if err != nil { // it has gone
		return false
	}
	defer func() { _ = c.Close() }()
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	own := false
	require.NoError(t, raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		own = err == nil && int(cred.Pid) == os.Getpid()
	}))
	return own
}

func read(t *testing.T, name string) (shot statsocket.Snapshot[metrics.Object]) {
	_, data, err := statsocket.Read(t.Context(), name, os.Getpid())
	assert.NoError(t, err)
	assert.NoError(t, json.Unmarshal(data, &shot))
	return shot
}

// Several clients get the counters, each all of them; only those of the context have texts.
func TestServe(t *testing.T) {
	name, s := serve(t, 1000)
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			shot := read(t, name)
			assert.Equal(t, os.Getpid(), shot.PID)
			assert.NotEmpty(t, shot.Program)
			if !assert.Len(t, shot.Objects, 1001) {
				return
			}
			assert.Equal(t, []string{"a number", ""}, []string{shot.Objects[0].Counters[0].Help, shot.Objects[1].Counters[0].Help})
		})
	}
	clients.Wait()
	require.NoError(t, s.Close())
	_, _, err := statsocket.Read(t.Context(), name, 0)
	require.Error(t, err)
}

// Clients that send anything, leave at once, or do not read do not keep others out for ever; nor do
// they keep Close waiting.
func TestHostileClients(t *testing.T) {
	name, s := serve(t, 10_000) // more than fits into the buffer of a socket
	dial := func() *net.UnixConn {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: name})
		require.NoError(t, err)
		return c
	}
	sender := dial()
	_, _ = sender.Write(make([]byte, 1<<10))
	require.NoError(t, sender.Close())
	require.NoError(t, dial().Close())
	require.Len(t, read(t, name).Objects, 10_001)
	silent := dial() // never reads
	defer func() { _ = silent.Close() }()
	one := make([]byte, 1)
	_, err := io.ReadFull(silent, one) // it is being served
	require.NoError(t, err)
	require.NoError(t, s.Close())
}
