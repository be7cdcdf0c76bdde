package etcd

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
	"github.com/verbena-rdma/verbena/test/process"
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
	*process.Process
	t    *testing.T
	what string
}

// start starts a program on a host: this one, which the environment makes that. It ends with its
// input.
func (h *hosts) start(t *testing.T, host, format string, args ...any) *program {
	t.Helper()
	what := fmt.Sprintf(format, args...)
	return &program{process.Start(t, process.Program{Args: append(h.of[host].Run(), os.Args[0]), Env: []string{programVariable + "=" + what}, In: true}), t, what}
}

// kill ends a program at once, as kill -9 does.
func (p *program) kill() { p.Kill() }

// stop has a program end, and returns when it has, successfully.
func (p *program) stop() {
	p.t.Helper()
	_ = p.In.Close()
	select {
	case <-p.Ended():
	case <-time.After(patience):
		require.Fail(p.t, "the program does not end", p.what)
	}
	p.Succeed()
}

// patience ends a test that hangs.
const patience = 5 * time.Minute

// await waits until a program has printed more than n lines that begin with a text, and
// returns the last.
func (p *program) await(beginning string, n int) (line string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	var all []string
	require.NoError(p.t, p.AwaitFunc(ctx, fmt.Sprintf("print %q", beginning), func() bool {
		all = p.printed(beginning)
		return len(all) > n
	}), p.what)
	return all[len(all)-1]
}

// printed returns the lines so far that begin with a text.
func (p *program) printed(beginning string) (list []string) {
	for _, line := range lines(p.Stdout.String()) {
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
