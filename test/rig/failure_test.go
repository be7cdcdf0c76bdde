package rig

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// boot is for guests that fail.
func boot(t *testing.T, ctx context.Context, job Job) (string, error) {
	t.Helper()
	Require(t)
	var output bytes.Buffer
	times, err := Boot(ctx, job, &output)
	t.Logf("guest: %s; error: %v", times, err)
	assertNoGuest(t)
	return output.String(), err
}

func assertNoGuest(t *testing.T) {
	t.Helper()
	assert.Empty(t, guests(t, "self"), "QEMU was left behind")
}

// guests are the children of a process that are QEMU, by their numbers.
func guests(t *testing.T, parent string) []string {
	t.Helper()
	lists, err := filepath.Glob("/proc/" + parent + "/task/*/children")
	require.NoError(t, err)
	var found []string
	for _, list := range lists {
		children, _ := os.ReadFile(list) // fails for a thread that has ended
		for _, pid := range strings.Fields(string(children)) {
			if isGuest(pid) {
				found = append(found, pid)
			}
		}
	}
	return found
}

func isGuest(pid string) bool {
	name, _ := os.ReadFile("/proc/" + pid + "/comm")
	return strings.HasPrefix(string(name), "qemu")
}

// A guest goes with the process that booted it, even when that is killed.
func TestKilledProcessLeavesNoGuest(t *testing.T) {
	Require(t)
	require.NoError(t, Prepare(t.Context()))
	cmd := exec.Command(Build(t, "./cmd"), "-")
	cmd.Stdin = strings.NewReader("sleep 1000")
	require.NoError(t, cmd.Start())
	defer cmd.Process.Kill()

	var running []string
	require.Eventually(t, func() bool {
		running = guests(t, strconv.Itoa(cmd.Process.Pid))
		return len(running) == 1
	}, time.Hour, 10*time.Millisecond, "the guest starts, when no other one runs")
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	assert.Eventually(t, func() bool { return !isGuest(running[0]) }, 5*time.Minute, 10*time.Millisecond, "QEMU ends")
}

func TestFailedCommandIsNamed(t *testing.T) {
	out, err := boot(t, t.Context(), Job{Script: `echo "before: mtu $(cat /sys/class/net/v0/mtu) $(ip netns exec s cat /sys/class/net/v1/mtu)"
probe() {
	ibv_devinfo -d "$1" >/dev/null
}
echo "rxe: a made-up warning" > /dev/kmsg
probe rxe7
echo after
`})
	require.ErrorIs(t, err, ErrFailed)
	assert.ErrorContains(t, err, "ended with status 255")
	assert.ErrorContains(t, err, `line 3: ibv_devinfo -d "$1" > /dev/null: status 255`)
	assert.ErrorContains(t, err, "rxe: a made-up warning")
	assert.Contains(t, out, "before: mtu 1500 1500\n", "those of a job that names none")
	assert.NotContains(t, out, "after")
}

// Short: TestFailedCommandIsNamed alone boots a guest that fails, which takes as long as
// any other.
func TestHangIsCutShort(t *testing.T) {
	if testing.Short() {
		t.Skip("make full runs it")
	}
	out, err := boot(t, t.Context(), Job{
		Files:   map[string]string{"/bin/rigtest": BuildTest(t, ".")},
		Script:  "echo begun\nRIG_HANG=1 rigtest -test.run '^TestHang$'\n",
		Timeout: 1234 * time.Second,
	})
	require.ErrorIs(t, err, ErrFailed)
	assert.ErrorContains(t, err, "the script took longer than 20m34s")
	assert.ErrorContains(t, err, "2 RIG_HANG=1 rigtest -test.run '^TestHang$'")
	assert.Contains(t, out, "begun\n")
	assert.Contains(t, out, "TestHang(", "the hanging program's goroutines are shown")
}

// TestHang is what hangs in the guest. It ends the sleep of the guest's watch, so
// that its time is over at once.
func TestHang(t *testing.T) {
	if os.Getenv("RIG_HANG") == "" {
		return
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, file := range commands {
		if line, _ := os.ReadFile(file); string(line) == "sleep\x001234\x00" {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			require.NoError(t, err)
			sleep, err := os.FindProcess(pid)
			require.NoError(t, err)
			require.NoError(t, sleep.Kill())
		}
	}
	time.Sleep(time.Hour)
}

func TestPanicOfTheKernel(t *testing.T) {
	if testing.Short() {
		t.Skip("make full runs it")
	}
	_, err := boot(t, t.Context(), Job{Script: "echo c > /proc/sysrq-trigger\n"})
	require.ErrorIs(t, err, ErrFailed)
	assert.ErrorContains(t, err, "the guest ended before its script")
	assert.ErrorContains(t, err, "1 echo c > /proc/sysrq-trigger")
	assert.ErrorContains(t, err, "Kernel panic - not syncing: sysrq triggered crash")
}

func TestCancel(t *testing.T) {
	if testing.Short() {
		t.Skip("make full runs it")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	Require(t)
	var output cancelOn = func(b []byte) {
		if strings.Contains(string(b), "begun") {
			cancel()
		}
	}
	_, err := Boot(ctx, Job{Script: "echo begun; sleep 1000"}, output)
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorIs(t, err, context.Canceled)
	assertNoGuest(t)
}

type cancelOn func([]byte)

func (f cancelOn) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

func TestBadJobs(t *testing.T) {
	Require(t)
	for name, job := range map[string]Job{
		"MTU too small":      {MTU: 1279},
		"MTU too big":        {MTU: 9001},
		"too little time":    {Timeout: time.Second},
		"no such file":       {Files: map[string]string{"/bin/x": "testdata/none"}},
		"relative path":      {Files: map[string]string{"bin/x": "rig.go"}},
		"the root itself":    {Files: map[string]string{"/": "."}},
		"a device":           {Files: map[string]string{"/null": "/dev/null"}},
		"results in nowhere": {Results: "testdata/none"},
		"results in a file":  {Results: "rig.go"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Boot(t.Context(), job, &bytes.Buffer{})
			assert.ErrorIs(t, err, ErrJob)
		})
	}
	t.Run("accelerator", func(t *testing.T) {
		t.Setenv("VERBENA_RIG_ACCEL", "fast")
		_, err := Boot(t.Context(), Job{}, &bytes.Buffer{})
		assert.ErrorIs(t, err, ErrJob)
		assert.ErrorContains(t, err, `"fast"`)
	})
}

func TestMissingIsNamed(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := Available()
	require.ErrorIs(t, err, ErrUnavailable)
	if _, err := os.Stat("/usr/sbin/qemu-system-x86_64"); err == nil {
		t.Fatal("this machine has QEMU where the test does not expect it")
	}
	assert.ErrorContains(t, err, "qemu-system-x86_64 (Debian package qemu-system-x86)")
	assert.ErrorContains(t, err, "busybox (Debian package busybox-static)")
	assert.ErrorContains(t, err, "scripts/rig-setup.sh")

	for _, c := range []struct{ ci, want string }{{"", "skip"}, {"true", "fail"}} {
		t.Setenv("CI", c.ci)
		spy := &spy{TB: t}
		Require(spy)
		assert.Equal(t, c.want, spy.called, "with CI=%s", c.ci)
		assert.Contains(t, spy.text, "qemu-system-x86_64")
	}
}

// A spy takes the place of a test, and keeps how that would have ended first.
type spy struct {
	testing.TB
	called, text string
}

func (s *spy) Helper() {}

func (s *spy) Skip(args ...any) { s.end("skip", fmt.Sprint(args...)) }

func (s *spy) Fatalf(format string, args ...any) { s.end("fail", fmt.Sprintf(format, args...)) }

func (s *spy) end(how, text string) {
	if s.called == "" {
		s.called, s.text = how, text
	}
}
