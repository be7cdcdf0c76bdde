package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// perfServer starts verbena perf as a server, and returns its address.
func perfServer(t *testing.T, flags ...string) (*process, string) {
	p := start(t, verbena(nil, append([]string{"perf", "-d", "soft-lo", "-bind", "127.0.0.1", "-p", "0"}, flags...)...)...)
	p.await(": interrupt to stop")
	_, rest, _ := strings.Cut(p.out.String(), "listening ")
	addr, _, _ := strings.Cut(rest, ": ")
	return p, addr
}

// Every test between two processes, with all data verified.
func TestPerfOfTwoProcesses(t *testing.T) {
	server, addr := perfServer(t)
	file := filepath.Join(t.TempDir(), "report.json")
	client := start(t, verbena(nil, "perf", "-test", "all", "-n", "30", "-t", "8", "-verify", "-warm-up", "1ms", "-json", file, "-timeout", "5m", addr)...)
	client.succeed()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	d, reports := json.NewDecoder(bytes.NewReader(b)), 0
	for ; d.More(); reports++ {
		var r struct {
			Results []struct {
				Operations, Checked int64
				Damage              string
			}
		}
		require.NoError(t, d.Decode(&r))
		require.Len(t, r.Results, 1)
		assert.GreaterOrEqual(t, r.Results[0].Operations, int64(30))
		assert.Positive(t, r.Results[0].Checked)
		assert.Empty(t, r.Results[0].Damage)
	}
	assert.Equal(t, 12, reports)
	server.interrupted()
	assert.Equal(t, 130, server.cmd.ProcessState.ExitCode(), "%s", &server.out)
}

// The end of one process ends the test of the other, and a server is there for the next client.
func TestPerfWhenAnEndGoesAway(t *testing.T) {
	forever := []string{"-D", "3600", "-warm-up", "1ms", "-timeout", "5m"}
	for _, how := range []struct {
		name string
		end  func(p *process) error
		code int
	}{
		{"interrupted", func(p *process) error { return p.cmd.Process.Signal(os.Interrupt) }, 130},
		{"killed", func(p *process) error { return p.cmd.Process.Kill() }, -1},
	} {
		for _, test := range []string{"write_bw", "send_lat"} {
			t.Run(how.name+" "+test, func(t *testing.T) {
				server, addr := perfServer(t)
				args := append([]string{"perf", "-test", test, addr}, forever...)
				client := start(t, verbena(nil, args...)...)
				client.await("#bytes")
				require.NoError(t, how.end(client))
				assert.Equal(t, how.code, client.code(), "%s", &client.out)
				server.await("the client is given up")

				client = start(t, verbena(nil, args...)...)
				client.await("#bytes")
				require.NoError(t, how.end(server))
				assert.Equal(t, how.code, server.code(), "%s", &server.out)
				assert.Equal(t, 1, client.code(), "%s", &client.out)
				assert.Contains(t, client.out.String(), "verbena perf: "+test+": ")
			})
		}
	}
}

// runPerf makes every test between two hosts, with all data verified: over TCP, and by
// connection manager.
func runPerf(t *testing.T, from, to host, family string) {
	for _, way := range [][]string{nil, {"-R"}} {
		addr := to.addr(family)
		server := start(t, verbena(to.run, append([]string{"perf", "-d", to.device, "-bind", addr, "-once"}, way...)...)...)
		server.await(": interrupt to stop")
		client := start(t, verbena(from.run, append([]string{"perf", "-d", from.device, "-test", "all", "-n", "20", "-t", "8", "-q", "2", "-b",
			"-s", "5000", "-warm-up", "1ms", "-verify", "-timeout", "5m", addr}, way...)...)...)
		client.succeed()
		assert.Equal(t, 12, strings.Count(client.out.String(), "verified: "), "%s", &client.out)
		server.succeed()
	}
}

// verbena perf with the kernel's rxe at one end or both. Short: without IPv6, and not between
// rxe and itself.
func TestGuestPerf(t *testing.T) {
	rxe, soft := guestHosts(t)
	forGuestFamilies(t, testing.Short(), func(t *testing.T, family string) {
		for _, hosts := range [][2]host{{rxe, soft}, {soft, rxe}, {rxe, rxe}} {
			if testing.Short() && hosts[0].name == hosts[1].name {
				continue
			}
			t.Run(hosts[0].name+" to "+hosts[1].name, func(t *testing.T) { runPerf(t, hosts[0], hosts[1], family) })
		}
	})
}
