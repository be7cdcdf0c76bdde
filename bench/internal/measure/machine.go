package measure

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/internal/processor"
)

// Machine describes this machine in a line.
func Machine() string {
	cpu, kernel := "", ""
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		_, rest, _ := strings.Cut(string(b), "model name")
		line, _, _ := strings.Cut(rest, "\n")
		cpu = " (" + strings.Trim(line, "\t :") + ")"
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel, _, _ = strings.Cut(strings.TrimSpace(string(b)), "-") // the rest names the build
	}
	return fmt.Sprintf("%s, %d processors%s, %s %s, %s.", time.Now().Format("2 January 2006"), runtime.NumCPU(), cpu, runtime.GOOS, kernel, runtime.Version())
}

// Load is the time that the processors of the machine have spent, in ticks.
type Load struct {
	busy, stolen, all float64
	own               time.Duration // processor time of this process
}

// StartLoad records the time spent so far.
func StartLoad() Load {
	b, _ := os.ReadFile("/proc/stat")
	l := parseStat(string(b))
	l.own = processor.Time()
	return l
}

// parseStat reads the first line of proc_stat(5).
func parseStat(text string) (l Load) {
	first, _, _ := strings.Cut(text, "\n")
	words := strings.Fields(first)
	if len(words) < 9 || words[0] != "cpu" {
		return l
	}
	// The columns: user nice system idle iowait irq softirq steal. Those of guests are part of
	// user.
	for i, w := range words[1:9] {
		v, err := strconv.ParseFloat(w, 64)
		if err != nil {
			return Load{}
		}
		l.all += v
		switch i {
		case 3, 4:
		case 7:
			l.stolen = v
		default:
			l.busy += v
		}
	}
	return l
}

// ticks is the unit of proc_stat(5): ticks a second, the same on every machine that Go runs on.
const ticks = 100

// Others says in a line how busy other programs have kept the machine since l. measured is the
// processor time of the programs that were measured.
func (l Load) Others(measured time.Duration) string {
	now := StartLoad()
	all := now.all - l.all
	if all <= 0 {
		return ""
	}
	measured += now.own - l.own
	others, stolen := max(0, (now.busy-l.busy-measured.Seconds()*ticks)/all), (now.stolen-l.stolen)/all
	state := "Quiet machine"
	if others > 0.1 || stolen > 0.05 {
		state = "BUSY MACHINE"
	}
	return fmt.Sprintf("%s: meanwhile other programs took %.0f %% of the processors' time, and the hypervisor %.0f %%.", state, 100*others, 100*stolen)
}
