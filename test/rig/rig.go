// Package rig runs programs beside the Linux kernel's software RDMA adapter,
// rxe, on a machine that has none: in a small virtual machine, emulated by
// QEMU, that boots in seconds and needs no privileges on the host.
//
// # Tests
//
// To add a test, write TestGuest... in the package that it tests, and list the package in
// parts of rig_test.go: TestRig runs the tests of all packages in one boot. Use requireGuest
// and openAdapter of cgo/ibverbs/guest_test.go as the pattern.
//
// Call Run only for a boot of its own. It takes programs and a shell script:
//
//	out := rig.Run(t, rig.Job{
//		Files:  map[string]string{"/bin/demo": rig.Build(t, "../demo")},
//		Script: "demo rxe0",
//	})
//
// # The guest
//
// Two hosts share a virtual Ethernet cable. The initial namespace has the end v0 with
// 10.0.0.1, fd00::1 and a link-local address, and on it the device rxe0. The network namespace
// s has the end v1 with 10.0.0.2 and fd00::2. It has no adapter, and is for the software
// device:
//
//	ip netns exec s demo soft-v1
//
// The names rxe and soft resolve to the two IPv4 addresses. When the script begins, the port
// of rxe0 is active, and its GID table is complete: index 0 is the link-local address, 1 is
// 10.0.0.1, 2 is fd00::1.
//
// The image has busybox, bash, iproute2, the tools and examples of rdma-core and perftest,
// tcpdump, netcat, iperf, memcached, librspreload.so.1, and every shared library that these and a
// job's own programs need. The folder /results is a folder of the host ([Job.Results]).
//
// The script runs as root under bash with errexit, nounset and pipefail: the first command
// that fails ends it, except for commands in the background (use wait). When the script ends,
// the guest ends with all its processes. The program await-port waits until a server listens:
//
//	ibv_rc_pingpong -d rxe0 -g 1 & await-port 18515
//	ibv_rc_pingpong -d rxe0 -g 1 rxe
//	wait $!
//
// # By hand
//
// scripts/rig gives a person a shell in the same guest, or runs a script in
// it; scripts/rig-setup.sh installs what the rig needs.
//
// The guest's processor is emulated, so its speed means nothing: only compare two programs in
// the same guest. VERBENA_RIG_ACCEL=kvm uses the processor's virtualization, which does not
// work on every machine that has /dev/kvm.
package rig

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Sentinels of the package, for errors.Is.
var (
	// ErrUnavailable: this machine cannot run the rig; the text names what is missing.
	ErrUnavailable = errors.New("rig: not available on this machine")
	// ErrJob: a field of the Job is wrong.
	ErrJob = errors.New("rig: invalid job")
	// ErrFailed: the guest did not start, died, took too long, or its script failed.
	ErrFailed = errors.New("rig: the guest failed")
)

// A Job describes the boot of one guest.
type Job struct {
	// Files are copied to the guest with their permissions: absolute path in the guest to path
	// on the host. A folder is copied with everything in it. The shared libraries that
	// programs need are added automatically.
	Files map[string]string
	// Script is run by bash in the folder /root.
	Script string
	// MTU is the MTU of the Ethernet between v0 and v1, in bytes, from 1280 to 9000. Zero
	// stands for 1500, which makes the path MTU of rxe0 1024; 4096 needs 4500 or more.
	MTU int
	// Timeout ends a script that hangs, at least 10 seconds; zero stands for 10 minutes. The
	// guest applies it, and reports what ran. The host ends a guest that does not react a
	// minute later, or that has not booted in 5 minutes.
	Timeout time.Duration
	// Results is an existing folder of the host, which is /results in the guest. Empty stands
	// for none: /results is then lost with the guest.
	Results string
}

const (
	defaultMTU     = 1500
	defaultTimeout = 10 * time.Minute
	leastTimeout   = 10 * time.Second
	bootTimeout    = 5 * time.Minute
	graceTime      = time.Minute // for the guest to report what hung
)

// Run boots a guest for the job and returns the script's standard output and standard error
// together. It also streams them to t.
//
// The test fails and ends if the script's exit status is not zero, or if the guest ends before
// the script does. The message names the command and repeats the kernel's last messages. If
// there can be no guest, the test is skipped by [Require].
//
// Guests of one source tree run one at a time, also those of different processes, since each
// uses two processors. The guest has ended when Run returns, and ends when the process dies.
func Run(t testing.TB, job Job) string {
	t.Helper()
	Require(t)

	ctx := t.Context()
	if d, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if deadline, ok := d.Deadline(); ok {
			// Leave time for the report of what was going on.
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, deadline.Add(-5*time.Second))
			defer cancel()
		}
	}
	var output bytes.Buffer
	times, err := Boot(ctx, job, io.MultiWriter(&output, t.Output()))
	switch {
	case errors.Is(err, ErrUnavailable):
		unavailable(t, err)
	case err != nil:
		t.Fatal(err)
	}
	t.Logf("guest: %s", times)
	return output.String()
}

// Require skips the test if the rig cannot run, with what is missing. With CI=true in the
// environment it fails the test instead.
func Require(t testing.TB) {
	t.Helper()
	if err := Available(); err != nil {
		unavailable(t, err)
	}
}

func unavailable(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%v; CI skips nothing", err)
	}
	t.Skip(err)
}

// Build compiles the program in the folder pkg with the flags of go build and
// returns the path of the binary, which lives as long as the test.
func Build(t testing.TB, pkg string, flags ...string) string {
	t.Helper()
	return compile(t, []string{"build"}, pkg, flags)
}

// BuildTest compiles the tests of the folder pkg with the flags of go test and
// returns the path of the binary, which lives as long as the test.
func BuildTest(t testing.TB, pkg string, flags ...string) string {
	t.Helper()
	return compile(t, []string{"test", "-c"}, pkg, flags)
}

func compile(t testing.TB, verb []string, pkg string, flags []string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "program")
	args := append(append(verb, "-o", binary), flags...)
	cmd := exec.CommandContext(t.Context(), "go", append(args, pkg)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return binary
}

func (j Job) timeout() time.Duration {
	if j.Timeout == 0 {
		return defaultTimeout
	}
	return j.Timeout
}
