package peers

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/machine"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/report"
	"github.com/verbena-rdma/verbena/internal/processor"
)

// machineWarnings collects the warnings of Verbena's reports.
type machineWarnings struct {
	machine machine.Machine // at the beginning
	reports int
	counts  map[string]int
}

func newMachineWarnings(m machine.Machine) *machineWarnings {
	return &machineWarnings{machine: m, counts: map[string]int{}}
}

// add adds the warnings of a report. It uses the load at the beginning, because later load
// comes from the measured programs.
func (d *machineWarnings) add(r *report.Report) {
	d.reports++
	r.Client.Machine.Load, r.Server.Machine.Load = d.machine.Load, d.machine.Load
	for _, w := range report.WarningsOf(r) {
		d.counts[w]++
	}
}

// list returns the warnings of all reports, the most frequent first.
func (d *machineWarnings) list() (list []string) {
	var texts []string
	for w := range d.counts {
		texts = append(texts, w)
	}
	slices.SortFunc(texts, func(a, b string) int {
		if n := d.counts[b] - d.counts[a]; n != 0 {
			return n
		}
		return strings.Compare(a, b)
	})
	for _, w := range texts {
		list = append(list, fmt.Sprintf("%d of %d measurements of Verbena: %s", d.counts[w], d.reports, w))
	}
	return list
}

// processorTime is the time that all processors have spent, in ticks.
type processorTime struct {
	busy, stolen, all float64
	self              time.Duration // processor time of this process
}

// startProcessorTime records the time spent so far.
func startProcessorTime() processorTime {
	b, _ := os.ReadFile("/proc/stat")
	p := parseStat(string(b))
	p.self = processor.Time()
	return p
}

// parseStat reads the first line of proc_stat(5).
func parseStat(text string) (p processorTime) {
	first, _, _ := strings.Cut(text, "\n")
	words := strings.Fields(first)
	if len(words) < 9 || words[0] != "cpu" {
		return p
	}
	// The columns: user nice system idle iowait irq softirq steal. The columns of guests are
	// part of user.
	for i, w := range words[1:9] {
		v, err := strconv.ParseFloat(w, 64)
		if err != nil {
			return processorTime{}
		}
		p.all += v
		switch i {
		case 3, 4:
		case 7:
			p.stolen = v
		default:
			p.busy += v
		}
	}
	return p
}

// ticks is the unit of proc_stat(5): ticks a second, the same on every machine that Go runs
// on.
const ticks = 100

// others returns the shares of the processors' time since p that other programs and the
// hypervisor have taken. ours is the processor time of the measured programs.
func (p processorTime) others(ours time.Duration) (others, stolen float64) {
	now := startProcessorTime()
	all := now.all - p.all
	if all <= 0 {
		return 0, 0
	}
	ours += now.self - p.self
	return max(0, (now.busy-p.busy-ours.Seconds()*ticks)/all), (now.stolen - p.stolen) / all
}
