// Package rig runs programs beside the Linux kernel's software RDMA adapter,
// rxe, on a machine that has none: in a small virtual machine, emulated by
// QEMU, that boots in seconds and needs no privileges on the host.
//
// A test hands [Run] its programs and a shell script:
//
//	out := rig.Run(t, rig.Job{
//		Files:  map[string]string{"/bin/demo": rig.Build(t, "../demo")},
//		Script: "demo rxe0",
//	})
//
// # The guest
//
// Two hosts share a virtual Ethernet cable. The initial namespace has the end
// v0 with 10.0.0.1, fd00::1 and a link-local address, and on it the device
// rxe0. The network namespace s has the end v1 with 10.0.0.2 and fd00::2; it
// has no adapter and is the place for the software device:
//
//	ip netns exec s demo soft-v1
//
// The names rxe and soft stand for the two IPv4 addresses. The port of rxe0 is
// active, and its GID table complete, when the script begins: index 0 is the
// link-local address, 1 is 10.0.0.1, 2 is fd00::1.
//
// The image holds busybox, bash, iproute2, the tools and examples of rdma-core
// and perftest, tcpdump, and every shared library that these and a job's own
// programs name. The folder /results is one of the host ([Job.Results]).
//
// The script runs as root under bash with errexit, nounset and pipefail: the
// first command that fails ends it, except behind an & (use wait). Processes
// still there when it ends are gone with the guest. The program await-port
// waits until a server listens:
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
// Speed in the guest is emulated: only ratios between two programs of the same
// guest mean anything. VERBENA_RIG_ACCEL=kvm takes the processor's own
// virtualization, which not every machine that shows /dev/kvm can do.
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
	ErrJob = errors.New("rig: bad job")
	// ErrFailed: the guest did not start, died, took too long, or its script failed.
	ErrFailed = errors.New("rig: the guest failed")
)

// A Job is what one guest is booted for.
type Job struct {
	// Files are brought into the guest, with their permissions: path in the
	// guest, absolute, to path on the host. A folder comes with all it holds;
	// the shared libraries of programs come along by themselves.
	Files map[string]string
	// Script is run by bash in the folder /root.
	Script string
	// MTU of the Ethernet between v0 and v1, in bytes, from 1280 to 9000.
	// Zero stands for 1500, which makes the path MTU of rxe0 1024; 4096 needs
	// 4500 or more.
	MTU int
	// Timeout ends a script that hangs, at least 10 seconds; zero stands for 10
	// minutes. It is for the guest, which names what ran; the host ends a guest
	// that does not answer a minute later, or that has not booted in 5 minutes.
	Timeout time.Duration
	// Results is an existing folder of the host, which the guest has as
	// /results. Empty stands for none: what is in /results goes with the guest.
	Results string
}

const (
	defaultMTU     = 1500
	defaultTimeout = 10 * time.Minute
	leastTimeout   = 10 * time.Second
	bootTimeout    = 5 * time.Minute
	graceTime      = time.Minute // for the guest to say what hung
)

// Run boots a guest for the job and returns what the script wrote, standard
// output and standard error together. It is streamed to t as well.
//
// The test fails, and ends, when the script ends with another status than
// zero or the guest does not make it to the script's end; the message names
// the command and repeats the last lines of the kernel. The test is skipped by
// [Require] where there can be no guest.
//
// Guests of one source tree run one at a time, whatever the number of
// processes: each is made for two processors. A guest is gone when Run
// returns, and when the process dies.
func Run(t testing.TB, job Job) string {
	t.Helper()
	Require(t)

	ctx := t.Context()
	if d, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if deadline, ok := d.Deadline(); ok {
			// Time is left to report what was going on.
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

// Require skips the test where the rig cannot run and says what is missing.
// With CI=true in the environment it fails the test instead.
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
