//go:build linux && cgo && verbs

package ibverbs

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/verbs"
)

// The kernel documents the sysfs files of RDMA devices in
// Documentation/ABI/stable/sysfs-class-infiniband.

// interfaceOf returns the network interface of a port's first or second GID, or else that of
// the adapter's device on the bus.
func interfaceOf(device string, port int) string {
	ndevs := filepath.Join(device, "ports", strconv.Itoa(port), "gid_attrs", "ndevs")
	for _, index := range []string{"0", "1"} {
		if b, err := os.ReadFile(filepath.Join(ndevs, index)); err == nil {
			return strings.TrimSpace(string(b))
		}
	}
	if entries, err := os.ReadDir(filepath.Join(device, "device", "net")); err == nil && len(entries) > 0 {
		return entries[0].Name()
	}
	return ""
}

// numaNode is the NUMA node of a device; -1: not known.
func numaNode(device string) int {
	b, err := os.ReadFile(filepath.Join(device, "device", "numa_node"))
	if node, bad := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && bad == nil {
		return node
	}
	return -1
}

// words are the counters whose unit is 4 bytes.
var words = []string{"port_rcv_data", "port_xmit_data"}

// gauges are how names of values that are no totals begin: those of bnxt_re, such as active_qps, and the
// most there have been, watermark_qps.
var gauges = []string{"active_", "watermark_"}

// readCounters appends all counters in a folder, sorted by name. They belong to that port; 0: to the
// device.
func readCounters(into []verbs.Counter, folder string, port int) []verbs.Counter {
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		if e.Name() == "lifespan" { // how long the kernel keeps the values, in ms
			continue
		}
		b, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			continue
		}
		// Skip texts that are no numbers, such as "N/A (no PMA)".
		if v, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
			c := verbs.Counter{Name: e.Name(), Value: v, Port: port}
			if slices.Contains(words, c.Name) {
				c.Unit = "words"
			}
			c.Gauge = slices.ContainsFunc(gauges, func(begin string) bool { return strings.HasPrefix(c.Name, begin) })
			into = append(into, c)
		}
	}
	return into
}
