//go:build linux && cgo && verbs

package ibverbs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// What is no number is left out, and values that are no totals are gauges.
func TestReadCounters(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"active_qps": "3\n", "watermark_qps": "4\n", "rx_pkts": "5\n", "port_xmit_data": "6\n", "lifespan": "10\n", "excessive": "N/A (no PMA)\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	require.Equal(t, []verbs.Counter{
		{Name: "active_qps", Value: 3, Gauge: true, Port: 1},
		{Name: "port_xmit_data", Value: 6, Unit: "words", Port: 1},
		{Name: "rx_pkts", Value: 5, Port: 1},
		{Name: "watermark_qps", Value: 4, Gauge: true, Port: 1},
	}, readCounters(nil, folder, 1))
}

func TestNUMANode(t *testing.T) {
	folder := t.TempDir()
	require.Equal(t, -1, numaNode(folder))
	require.NoError(t, os.Mkdir(filepath.Join(folder, "device"), 0o700))
	for text, node := range map[string]int{"1\n": 1, "-1\n": -1, "": -1, "one\n": -1} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, "device", "numa_node"), []byte(text), 0o600))
		require.Equal(t, node, numaNode(folder))
	}
}
