package stat

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

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
	require.Contains(t, errs.String(), "does not call metrics.Serve")
	out.Reset()
	require.Equal(t, 1, Main(context.Background(), []string{"-json", "-pid", pid}, &out, &errs))
	require.Equal(t, "[]\n", out.String())
	require.Equal(t, 2, Main(context.Background(), []string{"what"}, &out, &errs))
}
