//go:build linux

package test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/process"
	"github.com/verbena-rdma/verbena/test/netns"
)

// patience ends a program that hangs. Its stacks are printed.
const patience = 5 * time.Minute

// start starts a program. When ctx ends it is aborted: Go prints its stacks then.
func start(ctx context.Context, env, words []string) (*child, error) {
	out := new(process.Output)
	p, err := process.Start(ctx, process.Program{
		Args: words, Env: env, Dir: folder, // some leave files where they run
		Stdout: out, Stderr: out, Stop: syscall.SIGABRT, Grace: 10 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	return &child{p, out}, nil
}

// child is a program that runs.
type child struct {
	*process.Process
	output *process.Output
}

// stop ends a program that would go on, and waits until its children are gone too: their devices
// hold the port of an address.
func (p *child) stop() {
	_ = p.SignalGroup(syscall.SIGTERM)
	select {
	case <-p.Ended():
	case <-time.After(5 * time.Second):
		p.Kill()
	}
	for syscall.Kill(-p.PID(), 0) == nil {
		time.Sleep(time.Millisecond)
	}
}

func (p *child) ended() bool { return p.State() != nil }

// place is where the two programs of a row run.
type place struct {
	name           string
	server, client end
	host           string // the server's address
	from           string // the client's, where rows need it
	short          bool   // only the rows of the short form run here
	fewer          int    // divides the numbers of iterations; 0: 1
	control        *place // has rxe at both ends; a row that fails here runs there too, to compare
}

// end is where one program runs.
type end struct {
	prefix  []string // the beginning of its command line
	device  string   // as libibverbs names it
	gid     int      // the index of its IPv4 address in the GID table
	devices string   // VERBENA_DEVICES; empty: it has the kernel's devices, without the library
}

// onLoopback is a place for two processes of this machine.
func onLoopback(name, devices string) *place {
	e := end{device: "soft_lo", devices: devices}
	return &place{name: name, server: e, client: e, host: "127.0.0.1"}
}

// words is the command line of a program. HOST, FROM, PORT, DEV and GID stand for the server's and the
// client's address, a port, the program's device and the index of its GID.
func (p *place) words(e *end, command, port string) []string {
	words := append([]string{}, e.prefix...)
	for _, word := range strings.Fields(p.fill(e, command, port)) {
		if n, err := strconv.Atoi(word); err == nil && p.fewer > 1 && words[len(words)-1] == "-n" {
			word = strconv.Itoa(max(n/p.fewer, 5)) // perftest refuses less
		}
		words = append(words, word)
	}
	return words
}

// blanks are the words that stand for what a place knows. There is none in UCX_NET_DEVICES.
var blanks = regexp.MustCompile(`\b(DEV|GID|PORT|HOST|FROM)\b`)

func (p *place) fill(e *end, text, port string) string {
	words := map[string]string{"DEV": e.device, "GID": strconv.Itoa(e.gid), "PORT": port, "HOST": p.host, "FROM": p.from}
	return blanks.ReplaceAllStringFunc(text, func(word string) string { return words[word] })
}

// environment is that of a row's program.
func (p *place) environment(t *testing.T, e *end, r *row, port string) []string {
	t.Helper()
	env := os.Environ()
	if e.devices != "" {
		env = plain.environment(t, "VERBENA_LOG=info", "VERBENA_DEVICES="+e.devices)
	}
	for _, variable := range r.env {
		env = append(env, p.fill(e, variable, port))
	}
	return env
}

// freePort returns a TCP port that is free on all addresses.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// listens reports whether a process of the server's network namespace listens on a port.
func listens(pid int, protocol, port string) bool {
	number, err := strconv.Atoi(port)
	if err != nil {
		return false
	}
	want := fmt.Sprintf(":%04X", number)
	for _, table := range []string{protocol, protocol + "6"} {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		for line := range strings.Lines(string(data)) {
			// Fields: number, local address, remote address, state (0A: listen; 07: of all UDP sockets).
			if f := strings.Fields(line); len(f) > 3 && (f[3] == "0A" || f[3] == "07" && protocol == "udp") && strings.HasSuffix(f[1], want) {
				return true
			}
		}
	}
	return false
}

// registered reports whether a device in the server's network namespace listens for the connection
// manager. Not all programs let the caller choose the port.
func registered(pid int) bool {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", pid))
	return bytes.Contains(data, []byte("@verbena/rdma_cm/"))
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
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(r.limit, patience))
	defer cancel()
	port := freePort(t)
	client, clientEnv := p.words(&p.client, r.client, port), p.environment(t, &p.client, r, port)
	if r.server == "" {
		c, err := start(ctx, clientEnv, client)
		if err != nil {
			return "", err
		}
		err = c.Wait()
		return c.output.String(), r.checkEnd("the program", c.output.String(), err)
	}
	s, err := start(ctx, p.environment(t, &p.server, r, port), p.words(&p.server, r.server, port))
	if err != nil {
		return "", err
	}
	defer s.stop()
	ready := func() bool { return listens(s.PID(), "tcp", port) }
	switch {
	case r.listens != "":
		ready = func() bool { return strings.Contains(s.output.String(), r.listens) }
	case r.retries && p.client.devices == "" && p.server.devices != "":
		// The kernel's connection manager takes 5 s to repeat a request that nobody takes, and its
		// clients end if nobody listens.
		ready = func() bool { return registered(s.PID()) }
	case r.retries:
		ready = func() bool { return true }
	}
	for !ready() && !s.ended() && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
	}
	var c *child
	var first string // what the first client said; a later one finds no server if that has ended
	for tries := 0; ; tries++ {
		if c, err = start(ctx, clientEnv, client); err != nil {
			return "", err
		}
		err = c.Wait()
		said := c.output.String()
		if r.cannot != "" { // either end may be the first to fail, and the other does not go on
			s.stop() // its output is complete then
			said += s.output.String()
		}
		err = r.checkEnd("the client", said, err)
		// A client of a connection manager that starts before the server listens is refused.
		if err == nil || !r.retries || strings.Contains(c.output.String(), noReceive) || tries == 40 || s.ended() || ctx.Err() != nil {
			break
		}
		if first == "" {
			first = "\nthe first client: " + err.Error()
		}
		time.Sleep(250 * time.Millisecond)
	}
	output := c.output.String()
	if err != nil {
		return output, fmt.Errorf("%w%s\nthe server's output: %s", err, first, lastLines(s.output.String(), 12))
	}
	if r.stays {
		return output, nil
	}
	if err := s.Wait(); err != nil {
		return output, fmt.Errorf("the server: %w: %s", err, lastLines(s.output.String(), 40))
	}
	return output, nil
}

// checkEnd says what is wrong with how a program ended, and with its output.
func (r *row) checkEnd(who, output string, err error) error {
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
