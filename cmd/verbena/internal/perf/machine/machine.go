// Package machine describes the machine that a measurement ran on. Package report uses the
// description to warn of figures that cannot be trusted.
package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/internal/version"
)

// Machine is what measurements depend on besides the program.
type Machine struct {
	ID         string  `json:"id,omitempty"` // hash of the boot ID: equal for all processes since a boot
	OS         string  `json:"os"`
	Arch       string  `json:"arch"`
	Kernel     string  `json:"kernel,omitempty"`
	CPU        string  `json:"cpu,omitempty"`
	CPUs       int     `json:"cpus"` // that the process may run on
	Go         string  `json:"go"`
	Verbena    string  `json:"verbena"`
	Governor   string  `json:"governor,omitempty"` // of frequency scaling
	Hypervisor bool    `json:"hypervisor,omitempty"`
	Emulated   bool    `json:"emulated,omitempty"` // the processor is emulated in software
	Load       float64 `json:"load"`               // average number of runnable threads in the last minute
}

// Describe describes this machine. What the system does not report is left out.
func Describe() Machine {
	m := Machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(),
		Go: runtime.Version(), Verbena: version.String(),
		Kernel:   line("/proc/sys/kernel/osrelease"),
		Governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
	}
	if boot := line("/proc/sys/kernel/random/boot_id"); boot != "" {
		sum := sha256.Sum256([]byte("verbena perf " + boot))
		m.ID = hex.EncodeToString(sum[:8])
	}
	b, _ := os.ReadFile("/proc/cpuinfo")
	m.CPU, m.Hypervisor = parseCPU(string(b))
	m.Emulated = emulated(m.CPU, line("/sys/class/dmi/id/sys_vendor"), line("/sys/hypervisor/type"))
	if first, _, ok := strings.Cut(line("/proc/loadavg"), " "); ok {
		m.Load, _ = strconv.ParseFloat(first, 64)
	}
	return m
}

// line returns the first line of a file, or nothing.
func line(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(first)
}

// parseCPU finds the model of the first processor, and whether it runs under a hypervisor.
func parseCPU(cpuinfo string) (model string, hypervisor bool) {
	for l := range strings.Lines(cpuinfo) {
		key, value, ok := strings.Cut(l, ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "model name", "Model", "cpu model":
			if model == "" {
				model = value
			}
		case "flags":
			for _, f := range strings.Fields(value) {
				if f == "hypervisor" {
					return model, true
				}
			}
			return model, false
		}
	}
	return model, false
}

// emulated reports whether QEMU emulates the processor in software. With KVM, the guest sees the host's
// processor model, unless QEMU was started with a model of its own.
func emulated(model, vendor, hypervisor string) bool {
	return strings.Contains(model, "TCG") || strings.Contains(model, "QEMU") && vendor == "QEMU" && hypervisor == ""
}

// Swapped is the number of pages swapped out and in since boot.
func Swapped() (pages uint64) {
	b, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0
	}
	for l := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(l), " ")
		if name == "pswpin" || name == "pswpout" {
			n, _ := strconv.ParseUint(value, 10, 64)
			pages += n
		}
	}
	return pages
}
