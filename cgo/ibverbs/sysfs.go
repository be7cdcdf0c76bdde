//go:build linux && cgo && verbs

package ibverbs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/verbs"
)

// sysfs of RDMA devices: Documentation/ABI/stable/sysfs-class-infiniband of the
// kernel.

// interfaceBehind is the network interface of a port's first GID, or that of the
// adapter's function on the bus.
func interfaceBehind(device string, port int) string {
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

// readCounters reads all counters in a folder, in the order of their names.
func readCounters(into []verbs.Counter, folder, prefix string) []verbs.Counter {
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		if e.Name() == "lifespan" { // how long the kernel keeps the values, in ms
			continue
		}
		b, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			continue
		}
		// "N/A (no PMA)" and the like are no counts.
		if v, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
			into = append(into, verbs.Counter{Name: prefix + e.Name(), Value: v})
		}
	}
	return into
}
