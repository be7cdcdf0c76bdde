package main

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/soak"
)

// programVariable has the test program be the program itself, with the race detector if the
// tests have it.
const programVariable = "VERBENA_SOAK_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		os.Exit(run(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

func program(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), programVariable+"=1")
	return cmd
}

// TestSoakProgram runs the program: for seconds, or for ten minutes as often as soak tests
// are to run.
func TestSoakProgram(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("it stops processes, which takes Unix")
	}
	long := soak.Duration(t, 6*time.Second, 10*time.Minute)
	out, err := program("-time", long.String(), "-quiet", max(2*time.Second, long/10).String(), "-clients", "4", "-hasty").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "all is well")
	assert.Regexp(t, `(?m)^seed \d+:`, string(out))
	assert.Regexp(t, `failures +0\n`, string(out))
	t.Logf("%s", out)
}

// Everything that goes wrong is found, and ends the program with its name.
// Short: without those for which it has to lose patience.
func TestSabotage(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("it stops processes, which takes Unix")
	}
	for what, want := range map[string]string{
		sabotageData:  "the data is wrong: 1 of ",
		sabotageClose: " failed although its client is alive ",
		sabotageExit:  " failed: exit status 7",
		sabotageStop:  `the context "server of \w+" is Stopping`,
		sabotageHang:  "was told to leave, but did not within 20s",
		sabotageLeak:  `has resources left over: 20s after the last client left: \d+ open files`,
	} {
		patience := "10m"
		if what == sabotageHang || what == sabotageLeak {
			if testing.Short() || what == sabotageLeak && openFiles() == nil {
				continue
			}
			patience = "20s"
		}
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			// It ends long before its time.
			out, err := program("-time", "30m", "-quiet", "3s", "-clients", "3", "-hasty", "-patience", patience, "-sabotage", what).CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, "%s", out)
			assert.Equal(t, exitFailed, exit.ExitCode())
			assert.Regexp(t, want, string(out))
			assert.Regexp(t, `soak: failed with seed \d+: `, string(out))
		})
	}
}

func TestUsage(t *testing.T) {
	for name, args := range map[string][]string{
		"argument":   {"more"},
		"no time":    {"-time", "0s"},
		"no clients": {"-clients", "0"},
		"too many":   {"-clients", "1000"},
		"child":      {"-child", "nobody"},
		"service":    {"-services", "nothing"},
		"flag":       {"-nothing"},
	} {
		out, err := program(args...).CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, name)
		assert.Equal(t, exitUsage, exit.ExitCode(), "%s: %s", name, out)
	}
	out, err := program("-version").Output()
	require.NoError(t, err)
	assert.Regexp(t, `^soak (devel|v\d\S*) `, string(out))
}

// Packets are corrupted by IPv6 only: see drawFaults.
func TestFaultsDrawn(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	none, corrupt := 0, 0
	for range 1000 {
		for _, s := range services(true) {
			f := drawFaults(rng, s)
			f.Seed = 0
			if f == (soft.Faults{}) {
				none++
			}
			if f.Corrupt > 0 {
				corrupt++
				assert.True(t, s.ipv6)
			}
			assert.LessOrEqual(t, f.Loss, 0.08)
		}
	}
	assert.Positive(t, none)
	assert.Positive(t, corrupt)
}

// A quiet point is compared by what there is more of.
func TestCompare(t *testing.T) {
	base := resources{Heap: 10 << 20, RSS: 100 << 20, Goroutines: 10, Files: 20, Mappings: 2, Tasks: 1, Links: 3}
	require.NoError(t, base.counts(&base))
	require.NoError(t, base.memory(&base))
	less := base
	less.Goroutines, less.Files, less.Heap = 9, 19, 1
	require.NoError(t, less.counts(&base))
	require.NoError(t, less.memory(&base))
	for want, change := range map[string]func(h *resources){
		"11 goroutines, 10 before":              func(h *resources) { h.Goroutines++ },
		"21 open files":                         func(h *resources) { h.Files++ },
		"3 shared mappings, 2 before":           func(h *resources) { h.Mappings++ },
		"2 tasks allocated, 1 before":           func(h *resources) { h.Tasks++ },
		"4 connections, want 3":                 func(h *resources) { h.Links++ },
		"2 connections, want 3":                 func(h *resources) { h.Links-- },
		"5 buffers are in use":                  func(h *resources) { h.Buffers = 5 },
		"14.8 MiB in Go's heap, 10.0 MiB at":    func(h *resources) { h.Heap += heapTolerance + 1 },
		"132.0 MiB of resident memory, 100.0 M": func(h *resources) { h.RSS += rssTolerance + 1 },
	} {
		more := base
		change(&more)
		require.ErrorContains(t, errors.Join(more.counts(&base), more.memory(&base)), want)
	}
}

// Only sessions during which something was done to a client may fail.
func TestExcuses(t *testing.T) {
	c := &controller{clients: map[string]*child{}}
	p := &child{}
	assert.False(t, p.excuses(1))
	p.stopped, p.token = true, 2
	assert.True(t, p.excuses(1))
	c.handle(p, event{Is: isSettled, Token: 1, Session: 3}) // of an earlier stop
	assert.True(t, p.excuses(3))
	c.handle(p, event{Is: isSettled, Token: 2, Session: 4})
	assert.True(t, p.excuses(3))
	assert.False(t, p.excuses(4))
	p.killed = true
	assert.True(t, p.excuses(9))

	for _, want := range []session{{client: "c1-2", number: 34}, {"stay1", 1, 2, true, false}, {"c", 5, 6, true, true}} {
		got, err := parseSession(want.String())
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	for _, name := range []string{"", "c1", "c1.", "c1.x", "c1.2", "c1.2.3.4"} {
		_, err := parseSession(name)
		require.Error(t, err, name)
	}
}

// What there is on Linux alone is measured.
func TestResources(t *testing.T) {
	before := processResources()
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	stop := make(chan struct{})
	go func() { <-stop }()
	after := processResources()
	assert.Positive(t, after.Heap)
	assert.Greater(t, after.Goroutines, before.Goroutines)
	if runtime.GOOS == "linux" {
		assert.Equal(t, before.Files+1, after.Files, "%v", after.Kinds)
		assert.Positive(t, after.RSS)
		assert.Empty(t, zombies(map[int]bool{os.Getpid(): true}))
	}
	close(stop)
	require.NoError(t, f.Close())
}
