package samples

import (
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// local is a program without a peer, with the lines that it prints.
type local struct {
	program string
	want    []string
	// anyOrder: the device decides on the order.
	anyOrder bool
}

// locals returns the programs that show the engine, its tasks, graphs and sync
// events.
func locals() []local {
	const same = "the data is the same"
	var contexts []string
	for i := range 4 {
		contexts = append(contexts, fmt.Sprintf("context %d: 16 copies completed, it is Idle", i))
	}
	var pairs []string
	for i := range 16 {
		pairs = append(pairs, fmt.Sprintf("task %d: pair %d, 4096 bytes", i%4, i))
	}
	up := []string{"the context is Starting", "the context is Running"}
	down := []string{"the context is Stopping", "the context is Idle"}
	const refused = `rdma: write on connection 0 of context "rdma" (queue pair HEX to ADDRESS queue pair HEX): remote access error; ` +
		"check that the peer's memory is still registered, that the access is within its bounds, and that the peer's memory map and, for reads and atomics, its Config.Permissions allow it"

	list := []local{
		{"pe_polling", slices.Concat([]string{"16 copies submitted"}, numbered(0, 16, "copy %d: 4096 bytes"),
			[]string{"the context is Idle", "16 copies completed, " + same}), false},
		{"pe_multi_context", slices.Concat([]string{"the engine drives 4 contexts"}, contexts,
			[]string{"64 copies in all, " + same}), false},
		{"pe_reactive", slices.Concat(up[1:], numbered(0, 16, "copy %d: 4096 bytes"), down,
			[]string{"16 copies in a chain, " + same}), false},
		{"pe_async_stop", slices.Concat(up, []string{"16 receives and 8 messages submitted"},
			numbered(0, 8, "receive %d: 64 bytes"), []string{"stopped, with 8 tasks in flight"},
			numbered(8, 16, "receive %d: flushed, while the context is Stopping"), down,
			[]string{"8 messages received, 8 receives flushed"}), true},
		{"pe_single_task_comp_cb", slices.Concat(numbered(0, 16, "copy %d: 4096 bytes"),
			[]string{"copy 16: flushed", "16 copies completed, " + same}), false},
		{"pe_task_error", slices.Concat(up, []string{"255 writes submitted", "write 0: done", "write 1: " + refused}, down,
			[]string{"1 done, 1 failed, 253 flushed",
				`the context has stopped by itself: rdma: the last connection has failed: ` + refused}), false},
		{"pe_task_resubmit", append(pairs, "16 pairs copied by 4 tasks, "+same), false},
		{"pe_task_try_submit", slices.Concat(up, []string{
			"TrySubmit: rdma: submit a write: permission missing: the peer's memory map grants RemoteRead, but the task needs RemoteWrite",
			"TrySubmit, corrected: submitted", "written: 64 bytes", "Submit: submitted", "failed: " + refused,
			"the connection is Failed"}, down,
			[]string{"TrySubmit refused the mistake, Submit lost the connection because of it"}), false},
		{"graph", append(numbered(0, 10, "instance %d: both copies are the same"),
			"10 instances of a graph of 2 copies and 1 comparison have run"), true},
		{"sync_event_local", []string{"synchronous: 1 was set, and answered with 2",
			"asynchronous: a task waited until the value was 42",
			"atomic: 8 goroutines have added 1 10000 times each, the value is 80000, all values before were different"}, false},
	}
	if runtime.GOOS == "linux" {
		list = append(list, local{"pe_event", append(numbered(0, 16, "copy %d: 4096 bytes"),
			"the context is Idle", "16 copies completed, "+same), false})
	}
	return list
}

// numbered returns lines with the numbers from low up to high.
func numbered(low, high int, format string) (list []string) {
	for i := low; i < high; i++ {
		list = append(list, fmt.Sprintf(format, i))
	}
	return list
}

var (
	hexadecimal = regexp.MustCompile(`0x[0-9a-f]+`)
	address     = regexp.MustCompile(`to [0-9a-f.:]+ queue`)
)

// lines returns the lines that a program printed, without the parts that differ between runs.
func (l local) lines(output string) []string {
	output = address.ReplaceAllString(hexadecimal.ReplaceAllString(output, "HEX"), "to ADDRESS queue")
	list := strings.Split(strings.TrimSuffix(output, "\n"), "\n")
	if l.anyOrder {
		slices.Sort(list)
	}
	return list
}

func TestLocal(t *testing.T) {
	for _, l := range locals() {
		t.Run(l.program, func(t *testing.T) {
			t.Parallel()
			l.run(t)
		})
	}
}

func (l local) run(t *testing.T, args ...string) {
	t.Helper()
	p := start(t, append([]string{l.program, "-timeout", patience, "-l", "error"}, args...)...)
	assert.Zero(t, p.code())
	assert.Empty(t, p.stderr.String())
	if l.anyOrder {
		slices.Sort(l.want)
	}
	assert.Equal(t, l.want, l.lines(p.stdout.String()))
}

// A program stops at a signal even before it has started its work.
func TestLocalTimeout(t *testing.T) {
	for _, l := range locals() {
		t.Run(l.program, func(t *testing.T) {
			t.Parallel()
			p := start(t, l.program, "-timeout", "1ns", "-l", "error")
			assert.Equal(t, 1, p.code())
			assert.Equal(t, l.program+": gave up after 1ns (-timeout)\n", p.stderr.String())
			assert.NotContains(t, p.stdout.String(), l.want[len(l.want)-1])
		})
	}
}

func TestLocalWrongUsage(t *testing.T) {
	for _, l := range locals() {
		t.Run(l.program, func(t *testing.T) {
			t.Parallel()
			one(t, t.TempDir(), 2, l.program, []string{"-x"}, "-x", "-h lists the flags")
			one(t, t.TempDir(), 2, l.program, []string{"left", "over"}, `"left"`)
			one(t, t.TempDir(), 2, l.program, []string{"-oob", "dir"}, "-oob")
			one(t, t.TempDir(), 1, l.program, []string{"-d", "mlx5_99"}, "mlx5_99", "no such device", "soft-lo")
			one(t, t.TempDir(), 1, l.program, []string{"-d", "soft-lo?speed=11"}, "speed")
			if l.program != "sync_event_local" {
				one(t, t.TempDir(), 1, l.program, []string{"-g", "99"}, "99")
			}
		})
	}
}

// The loop of pe_event sleeps while it waits for a copy.
func TestEventSleeps(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("pe_event needs epoll, which Linux alone has")
	}
	p := start(t, "pe_event", "-timeout", patience)
	require.Zero(t, p.code())
	assert.Regexp(t, `sleeps=[1-9]`, p.stderr.String())
}
