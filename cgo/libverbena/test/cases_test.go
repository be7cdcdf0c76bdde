//go:build linux

package test

import (
	"cmp"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// compile compiles a program of testdata, and returns its path.
func (v variant) compile(t *testing.T, name string) string {
	t.Helper()
	v.library(t) // or skip
	to := filepath.Join(t.TempDir(), name)
	args := append([]string{"-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o", to, filepath.Join("testdata", name+".c")}, v.flags...)
	if v.race {
		args = append(args, "-no-pie", filepath.Join(v.library(t), archive), "-Wl,--export-dynamic")
	}
	out, err := exec.Command("cc", append(args, "-lefa", "-lrdmacm", "-libverbs", "-lpthread")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return to
}

// cases are the cases of testdata/cases.c that need more than to succeed without a message.
var cases = map[string]struct {
	message string // that they print
	devices string
	leaks   bool // memory, on purpose
	early   bool // what they do before the first use must come before the Go half starts
	plain   bool // sanitizers cannot run them
	faults  bool // they handle faults themselves
	efa     bool // they need two EFAs
}{
	"actions_of_children":   {early: true, faults: true},
	"actions_while_loading": {early: true, faults: true},
	"children_work":         {plain: true}, // a lock of the sanitizer's malloc can be held at a fork
	"default_actions":       {early: true, faults: true},
	"early_fault_handlers":  {early: true, faults: true},
	"exit_in_handler":       {early: true},
	"fault_handlers":        {early: true, faults: true},
	"few_files":             {message: "open 8 files: Too many open files", early: true},
	"few_threads":           {message: "start 8 threads: Resource temporarily unavailable", early: true},
	"fork_after_use":        {message: "was forked after its parent had used the verbs"},
	"fork_before_use":       {early: true},
	"fork_with_events":      {message: "was forked after its parent had used the verbs"},
	"killed":                {early: true},
	"leak":                  {leaks: true},
	"leak_in_group":         {leaks: true},
	"little_address_space":  {message: "reserve 2 GiB of address space: Cannot allocate memory", plain: true},
	"lossy":                 {devices: "soft-lo?local=off&loss=0.02"},
	"no_more_files":         {message: "too many open files", leaks: true},
	"on_demand_atomics":     {plain: true}, // the fault is in the race detector's own code
	"srd":                   {efa: true},
	"stale_handle":          {leaks: true},
	"wrong_devices":         {message: `interface "nonsense" does not exist`, devices: "soft-lo soft-nonsense"},
}

// TestCases runs the cases of a program in C, with each variant of the library. The short form
// leaves out the race detector, which takes a minute to build.
func TestCases(t *testing.T) {
	t.Run("plain", func(t *testing.T) { plain.runCases(t, "soft-lo") })
	t.Run("UDP", func(t *testing.T) { plain.runCases(t, "soft-lo?local=off") })
	t.Run("sanitized", func(t *testing.T) { sanitized.runCases(t, "soft-lo") })
	if !testing.Short() {
		t.Run("raced", func(t *testing.T) { raced.runCases(t, "soft-lo") })
	}
}

// efas returns two devices like this one that are EFAs, the second at an address of its own.
func efas(device string) string {
	place, options, _ := strings.Cut(device, "?")
	return place + "?efa=on&" + options + " soft-" + loopbackHost() + "1?efa=on&" + options
}

func (v variant) runCases(t *testing.T, devices string) {
	program := v.compile(t, "cases")
	list, err := run(t, v.environment(t), program)
	require.NoError(t, err, "%s", list)
	names := strings.Fields(list)
	require.NotEmpty(t, names)
	for _, name := range names {
		c := cases[name]
		if c.early && v.race || c.plain && len(v.flags) > 0 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			env := []string{"VERBENA_DEVICES=" + cmp.Or(c.devices, devices)}
			if c.efa {
				env[0] = "VERBENA_DEVICES=" + efas(devices)
			}
			switch {
			case c.faults:
				env = append(env, "ASAN_OPTIONS=detect_leaks=0:use_sigaltstack=0:handle_segv=0:handle_sigbus=0")
			case !c.leaks && !v.race:
				env = append(env, "ASAN_OPTIONS=detect_leaks=1:use_sigaltstack=0")
			}
			out, err := run(t, v.environment(t, env...), program, name)
			require.NoError(t, err, "%s", out)
			if c.message == "" {
				assert.Empty(t, out)
				return
			}
			assert.Contains(t, out, c.message)
			assert.Equal(t, 1, strings.Count(out, "verbena:"), "%s", out)
		})
	}
}
