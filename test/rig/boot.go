package rig

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/internal/process"
	"github.com/verbena-rdma/verbena/test/soak"
)

// Times is how long the steps of a guest took by the host's clock.
type Times struct {
	Prepare time.Duration // to make the archives, and to wait for other guests
	Ready   time.Duration // from the start of QEMU to the first line of the script
	Script  time.Duration // to the end of the script
	Off     time.Duration // to the end of QEMU
}

// String is for logs: "prepared in 0.1s, ready after 3.2s, ...".
func (t Times) String() string {
	return fmt.Sprintf("prepared in %.1fs, ready after %.1fs, script ran %.1fs, off after %.1fs",
		t.Prepare.Seconds(), t.Ready.Seconds(), t.Script.Seconds(), t.Off.Seconds())
}

// Boot is [Run] for programs: it copies the script's output to output as it arrives, from one
// goroutine. The error is an [ErrJob], [ErrUnavailable] or [ErrFailed]; cancelling ctx ends
// the guest at once.
func Boot(ctx context.Context, job Job, output io.Writer) (Times, error) {
	if err := Available(); err != nil {
		return Times{}, err
	}
	start := time.Now()
	cache, err := cacheDir()
	if err != nil {
		return Times{}, err
	}
	g, err := newGuest(ctx, cache, job)
	if err != nil {
		return Times{}, err
	}
	defer g.close()
	unlock, err := lock(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return Times{}, fmt.Errorf("wait for another guest to end: %w", err)
	}
	defer unlock()
	times := Times{Prepare: time.Since(start)}
	err = g.run(ctx, output, &times)
	return times, err
}

// Shell boots a guest with the job's files for a person, whose terminal is the guest's console
// until they leave. Script and Timeout are ignored, and Shell does not wait for other guests.
func Shell(ctx context.Context, job Job) error {
	if err := Available(); err != nil {
		return err
	}
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	g, err := newGuest(ctx, cache, job)
	if err != nil {
		return err
	}
	defer g.close()

	args := append(g.args("loglevel=4 RIG_SHELL=1", initrdFD-2),
		"-chardev", "stdio,id=tty,mux=on,signal=off", "-mon", "chardev=tty", "-serial", "chardev:tty")
	cmd := exec.CommandContext(ctx, g.qemu, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{g.initrd}
	return cmd.Run()
}

// Reasons for which the host ends a guest.
var (
	errSlowBoot   = errors.New("the boot took too long")
	errSlowScript = errors.New("the script took too long")
)

// A guest has everything that one boot needs.
type guest struct {
	job     Job
	qemu    string
	accel   []string
	clock   string // parameters of the kernel
	kernel  kernel
	initrd  *os.File // already unlinked; deleted with its last user
	results string   // absolute; empty for none
}

func newGuest(ctx context.Context, cache string, job Job) (*guest, error) {
	if job.MTU == 0 {
		job.MTU = defaultMTU
	}
	job.Timeout = job.timeout()
	// IPv6 requires 1280 (RFC 8200, section 5).
	if job.MTU < 1280 || job.MTU > 9000 {
		return nil, fmt.Errorf("%w: MTU %d is not between 1280 and 9000", ErrJob, job.MTU)
	}
	if job.Timeout < leastTimeout {
		return nil, fmt.Errorf("%w: Timeout %v is less than %v", ErrJob, job.Timeout, leastTimeout)
	}
	g := &guest{job: job}
	var err error
	if job.Results != "" {
		if g.results, err = filepath.Abs(job.Results); err != nil {
			return nil, err
		}
		if info, err := os.Stat(g.results); err != nil || !info.IsDir() {
			return nil, fmt.Errorf("%w: Results %q is not a folder", ErrJob, job.Results)
		}
	}
	if g.qemu, err = program("qemu-system-x86_64"); err != nil {
		return nil, err
	}
	switch accel := os.Getenv("VERBENA_RIG_ACCEL"); accel {
	case "", "tcg":
		g.accel = []string{"-accel", "tcg,thread=multi", "-cpu", "max"}
		// By default, the kernel distrusts the emulated processor's time stamp counter and
		// reads the clock from a device, which takes 1.8 µs instead of 0.15.
		g.clock = "tsc=reliable clocksource=tsc"
	case "kvm":
		g.accel = []string{"-accel", "kvm", "-cpu", "host"}
	default:
		return nil, fmt.Errorf("%w: VERBENA_RIG_ACCEL is %q, want tcg or kvm", ErrJob, accel)
	}
	if err := g.takeImage(ctx, cache); err != nil {
		return nil, err
	}
	return g, nil
}

// takeImage makes the guest independent of later changes to the cache.
func (g *guest) takeImage(ctx context.Context, cache string) error {
	unlock, err := lock(ctx, filepath.Join(cache, "image.lock"))
	if err != nil {
		return fmt.Errorf("wait for another process to build the image: %w", err)
	}
	defer unlock()
	img, err := findImage(ctx, cache)
	if err != nil {
		return err
	}
	g.kernel = img.kernel
	g.initrd, err = joinArchives(cache, img, g.job)
	return err
}

// joinArchives appends the job's files to the image's; the kernel unpacks one archive after
// the other.
func joinArchives(cache string, img image, job Job) (*os.File, error) {
	t, err := jobTree(img, job)
	if err != nil {
		return nil, err
	}
	common, err := os.Open(img.file)
	if err != nil {
		return nil, err
	}
	defer common.Close()
	f, err := os.CreateTemp(cache, "initrd-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := io.Copy(f, common); err != nil {
		f.Close()
		return nil, err
	}
	if err := archiveTo(f, t); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (g *guest) close() {
	g.initrd.Close()
}

// File descriptors inherited by QEMU.
const (
	outputFD  = 3
	controlFD = 4
	initrdFD  = 5
)

// args returns QEMU's arguments, the same for every guest. The kernel passes unknown words of
// its command line to the first process.
func (g *guest) args(words string, initrd int) []string {
	boot := fmt.Sprintf("console=ttyS0 panic=-1 mitigations=off no_timer_check %s RIG_MTU=%d %s", g.clock, g.job.MTU, words)
	if g.results != "" {
		boot += " RIG_RESULTS=1"
	}
	args := append([]string{}, g.accel...)
	args = append(args,
		"-smp", "2", "-m", "2048",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-kernel", g.kernel.vmlinux(),
		"-initrd", fmt.Sprintf("/dev/fd/%d", initrd),
		"-append", boot,
		"-device", "virtio-serial-pci")
	if g.results != "" {
		args = append(args,
			// A comma in a value is doubled.
			"-fsdev", "local,id=results,security_model=none,path="+strings.ReplaceAll(g.results, ",", ",,"),
			"-device", "virtio-9p-pci,fsdev=results,mount_tag=results")
	}
	return args
}

// run boots the guest, copies its output, and waits until QEMU has ended.
func (g *guest) run(ctx context.Context, output io.Writer, times *Times) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	words := fmt.Sprintf("loglevel=7 RIG_SECONDS=%d", int(g.job.Timeout.Seconds()))
	if soaked := os.Getenv(soak.Variable); soaked != "" {
		words += fmt.Sprintf(" %s=%s", soak.Variable, soaked)
	}
	args := append(g.args(words, initrdFD),
		"-chardev", fmt.Sprintf("file,id=output,path=/dev/fd/%d", outputFD),
		"-device", "virtserialport,chardev=output,name=output",
		"-chardev", fmt.Sprintf("file,id=control,path=/dev/fd/%d", controlFD),
		"-device", "virtserialport,chardev=control,name=control",
		"-chardev", "file,id=console,path=/dev/stdout",
		"-serial", "chardev:console")
	scriptOutput, scriptWriter, err := os.Pipe()
	if err != nil {
		return err
	}
	defer scriptOutput.Close()
	control, controlWriter, err := os.Pipe()
	if err != nil {
		return errors.Join(err, scriptWriter.Close())
	}
	defer control.Close()

	start := time.Now()
	qemu, err := process.Start(ctx, process.Program{Args: append([]string{g.qemu}, args...), Files: []*os.File{scriptWriter, controlWriter, g.initrd}})
	// The readers end when QEMU has closed its ends.
	if err = errors.Join(err, scriptWriter.Close(), controlWriter.Close()); err != nil {
		return err
	}
	limit := time.AfterFunc(bootTimeout, func() { cancel(errSlowBoot) })
	var (
		readers sync.WaitGroup
		report  report
		outErr  error
	)
	readers.Go(func() {
		if _, outErr = io.Copy(output, scriptOutput); outErr != nil {
			cancel(outErr)
		}
	})
	readers.Go(func() {
		report.read(control, func() {
			// If the timer has fired, it has already ended the guest.
			if limit.Stop() {
				limit = time.AfterFunc(g.job.Timeout+graceTime, func() { cancel(errSlowScript) })
			}
		})
	})
	err = qemu.Wait()
	readers.Wait()
	limit.Stop()
	off := time.Now()

	if !report.ready.IsZero() {
		times.Ready = report.ready.Sub(start)
	}
	if !report.exit.IsZero() {
		times.Script = report.exit.Sub(report.ready)
		times.Off = off.Sub(report.exit)
	}
	var what string
	switch {
	case outErr != nil:
		return fmt.Errorf("forward the guest's output: %w", outErr)
	case report.late || errors.Is(context.Cause(ctx), errSlowScript) && report.exit.IsZero():
		what = fmt.Sprintf("the script took longer than %v", g.job.Timeout)
	case errors.Is(context.Cause(ctx), errSlowBoot) && report.ready.IsZero():
		what = fmt.Sprintf("the boot took longer than %v", bootTimeout)
	case ctx.Err() != nil && report.exit.IsZero():
		return fmt.Errorf("%w: stopped: %w%s", ErrFailed, context.Cause(ctx), g.explain(&report, qemu))
	case report.exit.IsZero() && err != nil:
		what = fmt.Sprintf("QEMU ended: %v", err)
	case report.exit.IsZero():
		what = "the guest ended before its script"
	case report.status != 0:
		what = fmt.Sprintf("the script ended with status %d", report.status)
	default:
		return nil
	}
	return fmt.Errorf("%w: %s%s", ErrFailed, what, g.explain(&report, qemu))
}

// setUp is the console's line between the boot, with its many messages, and the script.
const setUp = "rig: set up"

// explain collects the information about why a guest failed.
func (g *guest) explain(r *report, qemu *process.Process) string {
	var s strings.Builder
	section := func(title string, lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(&s, "\n%s:\n\t%s", title, strings.Join(lines, "\n\t"))
		}
	}
	switch {
	case r.ready.IsZero():
		s.WriteString("\nthe script had not started")
	case (r.late || r.exit.IsZero()) && r.at != "":
		section("the script was at line", []string{r.at})
	}
	section("failed, innermost first", r.failed)
	section("processes", r.processes)
	section("the kernel's warnings and errors", r.kernel)
	// The kernel puts a question mark before stack entries that may be stale.
	section("last lines of the console", slices.DeleteFunc(linesAfter(qemu.Stdout.String(), setUp, 100), func(line string) bool {
		return strings.Contains(line, "]  ? ")
	}))
	section("QEMU", lastLines(qemu.Stderr.String(), 10))
	return s.String()
}

// A report is the information that the guest sends over its control port.
type report struct {
	ready, exit time.Time
	status      int
	late        bool
	at          string   // "LINE COMMAND" of the last command that began
	failed      []string // "line LINE: COMMAND: status STATUS"
	processes   []string
	kernel      []string
}

// read reads up to the guest's last line. It calls ready when the script begins.
func (r *report) read(from io.Reader, ready func()) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		if r.late && (word == "at" || word == "failed") {
			continue // a result of killing all processes
		}
		switch word {
		case "ready":
			r.ready = time.Now()
			ready()
		case "at":
			r.at = rest
		case "failed":
			status, rest, _ := strings.Cut(rest, " ")
			line, command, _ := strings.Cut(rest, " ")
			r.failed = appendBounded(r.failed, fmt.Sprintf("line %s: %s: status %s", line, command, status))
		case "process":
			r.processes = appendBounded(r.processes, rest)
		case "kernel":
			r.kernel = appendBounded(r.kernel, rest)
		case "late":
			r.late = true
		case "exit":
			status, err := strconv.Atoi(rest)
			if err != nil {
				status = -1
			}
			r.status, r.exit = status, time.Now()
		}
	}
	// Scanning stops at a line that is too long. Discard the rest, so that the guest can go on
	// writing.
	io.Copy(io.Discard, from)
}

// appendBounded appends to a report, and keeps it short.
func appendBounded(list []string, s string) []string {
	if len(list) >= 100 {
		return list
	}
	return append(list, s)
}

// lastLines returns the last n lines of a text that are not blank.
func lastLines(text string, n int) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\r\n \t"); line != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-n):]
}

// linesAfter returns the last n lines after the line mark, or of all lines if there is no
// mark.
func linesAfter(text, mark string, n int) []string {
	lines := lastLines(text, len(text))
	lines = lines[slices.Index(lines, mark)+1:]
	return lines[max(0, len(lines)-n):]
}
