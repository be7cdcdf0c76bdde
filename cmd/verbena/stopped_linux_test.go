package main

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/test/netns"
	"github.com/verbena-rdma/verbena/test/process"
)

// stop stops a server, as a debugger does. It continues before the test ends it.
func stop(t *testing.T, p *process.Process) {
	p.Send(syscall.SIGSTOP)
	t.Cleanup(func() { p.Send(syscall.SIGCONT); interrupted(p) })
}

// A server that is stopped is called stopped: the network is not blamed.
func TestStoppedPingServer(t *testing.T) {
	const short = "3s" // for what will not happen
	t.Run("this machine", func(t *testing.T) {
		server := start(t, verbena(t, nil, "ping", "-s", "-d", "soft-lo")...)
		server.Await("interrupt to stop")
		stop(t, server)
		client := start(t, verbena(t, nil, "ping", "-t", short, "127.0.0.1")...)
		assert.Equal(t, 1, client.Code())
		assert.Contains(t, client.Stderr.String(), "is stopped (by SIGSTOP")
		assert.NotContains(t, client.Stderr.String(), "firewall")
	})
	t.Run("another host", func(t *testing.T) {
		hosts := netns.Hosts(t, 2, 1500)
		ping := func(code int, want string) {
			client := start(t, verbena(t, hosts[0].Run(), "ping", "-t", short, hosts[1].V4.String())...)
			assert.Equal(t, code, client.Code())
			assert.Contains(t, client.Stderr.String(), want)
			assert.NotContains(t, client.Stderr.String(), "firewall")
		}
		ping(1, "UDP port 4791 is closed")
		server := start(t, verbena(t, hosts[1].Run(), "ping", "-s", "-d", "soft-"+netns.Link)...)
		server.Await("interrupt to stop")
		stop(t, server)
		ping(1, "the process is stopped")
	})
}

// verbena perf does not wait long for a server, and blames what it knows.
func TestPerfWithoutAnswer(t *testing.T) {
	waits := map[string]*process.Process{}
	for want, way := range map[string][]string{
		"is stopped (by SIGSTOP or a debugger), or is not verbena perf": nil,
		"no answer within 5s; is verbena perf -R running there?":        {"-R"},
	} {
		server, addr := perfServer(t, way...)
		stop(t, server)
		waits[want] = start(t, verbena(t, nil, append([]string{"perf", "-timeout", "1h", addr}, way...)...)...)
	}
	for want, client := range waits {
		assert.Equal(t, 1, client.Code())
		assert.Contains(t, client.Stderr.String(), want)
		assert.Contains(t, client.Stderr.String(), `"verbena ping 127.0.0.`)
	}
}
