//go:build linux

package test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
)

// patience ends a program that hangs. Its stacks are printed.
const patience = 90 * time.Second

// process is a program that runs.
type process struct {
	cmd    *exec.Cmd
	output syncBuffer
	done   chan struct{}
	err    error // of the end; valid when done is closed
}

// syncBuffer can be read while a program writes to it.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start starts a program. After patience it is aborted: Go prints its stacks then.
func start(ctx context.Context, env, words []string) (*process, error) {
	p := &process{cmd: exec.CommandContext(ctx, words[0], words[1:]...), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir = env, folder // some leave files where they run
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.cmd.Cancel = func() error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGABRT) }
	p.cmd.WaitDelay = 10 * time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// wait returns how the program ended.
func (p *process) wait() error {
	<-p.done
	return p.err
}

// stop ends a program that would go on, and waits until its children are gone too: their devices
// hold the port of an address.
func (p *process) stop() {
	group := -p.cmd.Process.Pid
	_ = syscall.Kill(group, syscall.SIGTERM)
	for tries := 0; ; tries++ {
		if p.ended() && syscall.Kill(group, 0) != nil {
			return
		}
		if tries == 500 {
			_ = syscall.Kill(group, syscall.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// place is where the two programs of a row run.
type place struct {
	name           string
	server, client []string // the beginnings of their command lines
	device         string   // as libibverbs names it
	devices        string   // VERBENA_DEVICES
	host           string   // the server's address
}

// freePort returns a TCP port that is free on all addresses.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// listens reports whether a process of the server's network namespace listens on a TCP port.
func listens(pid int, port string) bool {
	number, err := strconv.Atoi(port)
	if err != nil {
		return false
	}
	want := fmt.Sprintf(":%04X", number)
	for _, table := range []string{"tcp", "tcp6"} {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		for line := range strings.Lines(string(data)) {
			// Fields: number, local address, remote address, state (0A: listen).
			if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1], want) {
				return true
			}
		}
	}
	return false
}

// perftest refuses to print a result if it could not measure the frequency of the processor,
// which happens on a loaded machine.
const noFrequency = "Can't produce a report"

// fio's client sends half a second after it connects, and asks for no retries if the server has no
// receive by then.
const noReceive = "cq completion status 13"

// run runs a pair of programs. It returns the client's output, and what went wrong.
func (r *row) run(t *testing.T, p *place) (output string, err error) {
	t.Helper()
	for range 5 {
		if output, err = r.runOnce(t, p); err == nil || !strings.Contains(err.Error(), noFrequency) {
			break // also if the server could not measure it
		}
	}
	return output, err
}

// runOnce runs a pair of programs. It returns the client's output, and what went wrong.
func (r *row) runOnce(t *testing.T, p *place) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	port := freePort(t)
	fill := strings.NewReplacer("DEV", p.device, "PORT", port, "HOST", p.host)
	words := func(prefix []string, command string) []string {
		return append(append([]string{}, prefix...), strings.Fields(fill.Replace(command))...)
	}
	env := plain.environment(t, "VERBENA_LOG=info", "VERBENA_DEVICES="+p.devices)
	for _, e := range r.env {
		env = append(env, fill.Replace(e))
	}
	if r.server == "" {
		c, err := start(ctx, env, words(p.client, r.client))
		if err != nil {
			return "", err
		}
		err = c.wait()
		return c.output.String(), r.checkEnd("the program", c, err)
	}
	s, err := start(ctx, env, words(p.server, r.server))
	if err != nil {
		return "", err
	}
	defer s.stop()
	if !r.retries {
		for !listens(s.cmd.Process.Pid, port) && !s.ended() && ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond)
		}
	}
	var c *process
	for tries := 0; ; tries++ {
		if c, err = start(ctx, env, words(p.client, r.client)); err != nil {
			return "", err
		}
		err = r.checkEnd("the client", c, c.wait())
		// A client of a connection manager that starts before the server listens is refused.
		if err == nil || !r.retries || strings.Contains(c.output.String(), noReceive) || tries == 40 || s.ended() || ctx.Err() != nil {
			break
		}
		time.Sleep(250 * time.Millisecond)
	}
	output := c.output.String()
	if err != nil {
		return output, fmt.Errorf("%w\nthe server's output: %s", err, lastLines(s.output.String(), 12))
	}
	if r.stays {
		return output, nil
	}
	if err := s.wait(); err != nil {
		return output, fmt.Errorf("the server: %w: %s", err, lastLines(s.output.String(), 40))
	}
	return output, nil
}

// checkEnd says what is wrong with how a program ended.
func (r *row) checkEnd(who string, p *process, err error) error {
	output := p.output.String()
	switch {
	case r.cannot != "" && err == nil:
		return fmt.Errorf("%s: it works, though it %s: %s", who, r.cannot, lastLines(output, 12))
	case r.cannot == "" && err != nil:
		return fmt.Errorf("%s: %w: %s", who, err, lastLines(output, 40))
	case !strings.Contains(output, r.prints):
		return fmt.Errorf("%s: its output lacks %q: %s", who, r.prints, lastLines(output, 12))
	}
	return nil
}

// needProgram skips the test where a program is missing.
func needProgram(t testing.TB, name, debianPackage string) {
	t.Helper()
	_, err := exec.LookPath(name)
	netns.Need(t, err, "the test needs "+name+" (Debian package "+debianPackage+")")
}

// lastLines are the last lines of a program's output, for messages.
func lastLines(output string, n int) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
