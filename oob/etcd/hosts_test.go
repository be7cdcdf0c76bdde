package etcd

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
)

// hosts is a network of namespaces: a host for each of names, and one for the etcd server.
type hosts struct {
	of map[string]netns.Host
}

const (
	serverHost = "server"
	hostDevice = "soft-" + netns.Link // of each host
)

var names = []string{"a", "b", "c"} // of the hosts, and of the programs on them

func newHosts(t *testing.T) *hosts {
	t.Helper()
	all := append([]string{serverHost}, names...)
	h := &hosts{of: map[string]netns.Host{}}
	for i, host := range netns.Hosts(t, len(all), 1500) {
		h.of[all[i]] = host
	}
	return h
}

// program is a program on a host.
type program struct {
	t      *testing.T
	what   string
	cmd    *exec.Cmd
	input  io.Closer
	stdout output
	stderr output
	ended  chan struct{}
}

// output can be read while it is written.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// start starts a program on a host: this one, which the environment makes that.
func (h *hosts) start(t *testing.T, host, format string, args ...any) *program {
	t.Helper()
	p := &program{t: t, what: fmt.Sprintf(format, args...), ended: make(chan struct{})}
	words := append(h.of[host].Run(), os.Args[0])
	p.cmd = exec.Command(words[0], words[1:]...)
	p.cmd.Env = append(os.Environ(), programVariable+"="+p.what, "GORACE=atexit_sleep_ms=0")
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	input, err := p.cmd.StdinPipe() // the program ends with it, also if this one dies
	require.NoError(t, err)
	p.input = input
	require.NoError(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s printed\n%s%s", p.what, &p.stdout, &p.stderr)
		}
	})
	return p
}

// kill ends a program at once, as kill -9 does.
func (p *program) kill() {
	_ = p.cmd.Process.Kill() // ip has become the program
	<-p.ended
}

// stop has a program end, and returns when it has, successfully.
func (p *program) stop() {
	p.t.Helper()
	_ = p.input.Close()
	select {
	case <-p.ended:
	case <-time.After(patience):
		require.Fail(p.t, "the program does not end", p.what)
	}
	require.Zero(p.t, p.cmd.ProcessState.ExitCode(), "%s: %s", p.what, &p.stderr)
}

// patience ends a test that hangs.
const patience = 5 * time.Minute

// await waits until a program has printed more than n lines that begin with a text, and
// returns the last.
func (p *program) await(beginning string, n int) (line string) {
	p.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		all := p.printed(beginning)
		if len(all) > n {
			return all[len(all)-1]
		}
		select {
		case <-p.ended:
			require.Fail(p.t, "the program has ended", "%s, while %q was waited for: %s", p.what, beginning, &p.stderr)
		case <-time.After(5 * time.Millisecond):
		}
		require.True(p.t, time.Now().Before(deadline), "%s has not printed %q", p.what, beginning)
	}
}

// printed returns the lines so far that begin with a text.
func (p *program) printed(beginning string) (list []string) {
	for _, line := range lines(p.stdout.String()) {
		if strings.HasPrefix(line, beginning) {
			list = append(list, line)
		}
	}
	return list
}

// Programs on three hosts find each other by name, started in any order. One of them is
// killed and started again: the others miss it, find it again, and go on.
func TestThreeHosts(t *testing.T) {
	h := newHosts(t)
	server := h.start(t, serverHost, "%s %s", serverProgram, h.of[serverHost].V4)
	address := strings.TrimPrefix(server.await("listens at ", 0), "listens at ")
	for i, order := range []string{"abc", "bca", "cab", "cba", "acb", "bac"} {
		t.Run(order, func(t *testing.T) {
			test := meeting{t: t, hosts: h, address: address, runs: map[string]int{}, programs: map[string]*program{}}
			for at, name := range strings.Split(order, "") {
				test.start(name)
				if at == 0 && i%2 == 1 { // killed while it waits: what it left must not lead others astray
					test.programs[name].kill()
					test.start(name)
				}
			}
			test.exchanges(nil)

			// The one that was started first is killed. If it is started again at once, the
			// others have still to miss it.
			victim, gone := order[:1], test.run(order[:1])
			before := test.counts()
			test.programs[victim].kill()
			if i >= 3 {
				test.start(victim)
			}
			for _, name := range names {
				if name != victim {
					test.programs[name].await(fmt.Sprintf("closed: %s %s:", victim, gone), 0)
				}
			}
			if i < 3 {
				test.start(victim)
			}
			test.exchanges(before)
			for _, name := range strings.Split(order, "") {
				test.programs[name].stop()
			}
		})
	}
	server.stop()
}

// meeting is one of the three programs.
type meeting struct {
	t        *testing.T
	hosts    *hosts
	address  string         // of the etcd server
	runs     map[string]int // how often each was started
	programs map[string]*program
}

func (m *meeting) run(name string) string { return fmt.Sprintf("%s%d", name, m.runs[name]) }

// start starts a program, and returns when it waits for the others.
func (m *meeting) start(name string) {
	m.t.Helper()
	m.runs[name]++
	others := strings.ReplaceAll(strings.Join(names, " "), name, "")
	m.programs[name] = m.hosts.start(m.t, name, "%s %s /%s %s %s %s %s", memberProgram, m.address, m.t.Name(), hostDevice, m.run(name), name, others)
	m.programs[name].await("waits", 0)
}

// exchanges waits until each program has exchanged messages with each other that runs
// now, and more than before.
func (m *meeting) exchanges(before map[string]int) {
	m.t.Helper()
	for _, name := range names {
		for _, other := range names {
			if other != name {
				what := fmt.Sprintf("exchanged: %s %s:", other, m.run(other))
				m.programs[name].await(what, before[m.run(name)+what])
			}
		}
	}
}

// counts returns how often each program that runs has reported each other.
func (m *meeting) counts() map[string]int {
	counts := map[string]int{}
	for _, name := range names {
		for _, other := range names {
			what := fmt.Sprintf("exchanged: %s %s:", other, m.run(other))
			counts[m.run(name)+what] = len(m.programs[name].printed(what))
		}
	}
	return counts
}
