package stat

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/statsocket"
	"github.com/verbena-rdma/verbena/metrics"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type source []metrics.Object

func (s source) Metrics(bool) iter.Seq[metrics.Object] { return slices.Values(s) }

// What a program serves is shown, without what could command the terminal.
func TestStat(t *testing.T) {
	served, err := metrics.Serve(source{
		{Kind: "device", Name: "soft-lo", Device: "soft-lo", Counters: []verbs.Counter{{Name: "sent_pkts", Value: 7, Help: "packets sent"}, {Name: "none"}}},
		{Kind: "stream", Device: "soft-lo", State: "established\x1b[2J\u009b", Path: "network", Local: "127.0.0.1:1", Peer: "127.0.0.1:2",
			Counters: []verbs.Counter{{Name: "round_trip", Value: 12_345, Unit: "nanoseconds"}}},
	})
	require.NoError(t, err)
	pid := strconv.Itoa(os.Getpid())
	path, err := os.Executable()
	require.NoError(t, err)
	var out, errs bytes.Buffer
	require.Zero(t, Main(context.Background(), []string{"-pid", pid}, &out, &errs), "%s", &errs)
	require.Contains(t, out.String(), "process "+pid+" "+filepath.Base(path)+"\n"+
		"  device soft-lo\n    sent_pkts  7\n"+
		"  stream on soft-lo established\ufffd[2J\ufffd 127.0.0.1:1 to 127.0.0.1:2 by network\n      round_trip:12.3µs\n")
	require.NotContains(t, out.String(), "none")
	out.Reset()
	require.Zero(t, Main(context.Background(), []string{"-json", "-pid", pid}, &out, &errs))
	var shots []statsocket.Snapshot[metrics.Object]
	require.NoError(t, json.Unmarshal(out.Bytes(), &shots))
	require.Len(t, shots[0].Objects, 2)
	require.NotContains(t, out.String(), "\u009b")
	require.NoError(t, served.Close())
	require.Equal(t, 1, Main(context.Background(), []string{"-pid", pid}, &out, &errs))
	require.Contains(t, errs.String(), "shows nothing")
	out.Reset()
	require.Equal(t, 1, Main(context.Background(), []string{"-json", "-pid", pid}, &out, &errs))
	require.Equal(t, "[]\n", out.String())
	require.Equal(t, 2, Main(context.Background(), []string{"what"}, &out, &errs))
}

// listen makes a socket that verbena stat does not find by itself.
func listen(t *testing.T) (name string, l *net.UnixListener) {
	name = "@verbena/test/stat/" + rand.Text()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: name})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return name, l
}

// answering answers once.
func answering(t *testing.T, text string) (name string) {
	name, l := listen(t)
	var served sync.WaitGroup
	t.Cleanup(served.Wait)
	served.Go(func() {
		c, err := l.AcceptUnix()
		if assert.NoError(t, err) {
			_, _ = io.WriteString(c, text) // verbena stat may have left
			assert.NoError(t, c.Close())
		}
	})
	return name
}

// full is the name of a socket at which as many clients wait as can.
func full(t *testing.T) (name string) {
	name = "@verbena/test/stat/" + rand.Text()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: name}))
	require.NoError(t, unix.Listen(fd, 0))
	for err == nil {
		var c net.Conn
		if c, err = net.Dial("unix", name); err == nil {
			t.Cleanup(func() { require.NoError(t, c.Close()) })
		}
	}
	require.ErrorIs(t, err, unix.EAGAIN)
	return name
}

// Programs that do not answer hide nothing of the others, and verbena stat says what it does not know.
// Short: without one that is stopped.
func TestOthersDoNotAnswer(t *testing.T) {
	ctx, pid := t.Context(), os.Getpid()
	names := []string{full(t), answering(t, `{"Program":"one"}`), answering(t, `{"Program":"o`)}
	if !testing.Short() {
		stopped, _ := listen(t)
		names = append(names, stopped)
	}
	shots, unknown, err := snapshots(ctx, names, 0)
	if testing.Short() {
		require.NoError(t, err)
	} else {
		require.EqualError(t, err, fmt.Sprintf("process %d has not answered within 5s: it is stopped (by SIGSTOP or a debugger), or busy with other clients", pid))
	}
	require.Contains(t, unknown, "do not answer: 1 (busy")
	require.Len(t, shots, 1)
	require.Equal(t, "one", shots[0].Program)

	_, unknown, err = snapshots(ctx, []string{full(t), answering(t, `{"Program":"one"}`)}, pid+1)
	require.ErrorContains(t, err, "shows nothing yet")
	require.ErrorContains(t, err, "do not answer: 1 (busy")
	require.Empty(t, unknown)
	_, _, err = snapshots(ctx, []string{answering(t, `{"Program`)}, 0)
	require.ErrorContains(t, err, "no program shows anything")
}
