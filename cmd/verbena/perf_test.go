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

	"github.com/verbena-rdma/verbena/test/process"
)

// perfServer starts verbena perf as a server, and returns its address.
func perfServer(t *testing.T, flags ...string) (*process.Process, string) {
	p := start(t, verbena(t, nil, append([]string{"perf", "-d", "soft-lo", "-bind", "127.0.0.1", "-p", "0"}, flags...)...)...)
	p.Await(": interrupt to stop")
	_, rest, _ := strings.Cut(p.Stderr.String(), "listening ")
	addr, _, _ := strings.Cut(rest, ": ")
	return p, addr
}

// Every test between two processes, with all data verified.
func TestPerfOfTwoProcesses(t *testing.T) {
	server, addr := perfServer(t)
	file := filepath.Join(t.TempDir(), "report.json")
	client := start(t, verbena(t, nil, "perf", "-test", "all", "-n", "30", "-t", "8", "-verify", "-warm-up", "1ms", "-json", file, "-timeout", "5m", "-wait", "5m", addr)...)
	client.Succeed()
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
	interrupted(server)
	assert.Equal(t, 130, server.Code(), "%s", server.Stderr)
}

// A server for one client ends with an error when the client is killed.
func TestPerfOnceKilled(t *testing.T) {
	for _, way := range [][]string{nil, {"-R"}} {
		server, addr := perfServer(t, append(way, "-once")...)
		client := start(t, verbena(t, nil, append([]string{"perf", "-test", "write_bw", addr, "-D", "3600", "-warm-up", "1ms", "-timeout", "5m", "-wait", "5m"}, way...)...)...)
		client.Await("#bytes")
		client.Send(os.Kill)
		assert.Equal(t, -1, client.Code())
		assert.Equal(t, 1, server.Code(), "%s", server.Stderr)
		assert.Contains(t, server.Stderr.String(), "verbena perf: the client ")

		server, addr = perfServer(t, append(way, "-once")...)
		client = start(t, verbena(t, nil, append([]string{"perf", "-test", "write_bw", addr, "-n", "10", "-warm-up", "1ms", "-timeout", "5m", "-wait", "5m"}, way...)...)...)
		client.Succeed()
		server.Succeed()
	}
}

// The end of one process ends the test of the other, and a server is there for the next client.
func TestPerfWhenAnEndGoesAway(t *testing.T) {
	forever := []string{"-D", "3600", "-warm-up", "1ms", "-timeout", "5m", "-wait", "5m"}
	for _, how := range []struct {
		name string
		end  func(p *process.Process) error
		code int
	}{
		{"interrupted", func(p *process.Process) error { return p.Signal(os.Interrupt) }, 130},
		{"killed", func(p *process.Process) error { return p.Signal(os.Kill) }, -1},
	} {
		for _, test := range []string{"write_bw", "send_lat", "read_batch"} {
			t.Run(how.name+" "+test, func(t *testing.T) {
				server, addr := perfServer(t)
				args := append([]string{"perf", "-test", test, addr}, forever...)
				client := start(t, verbena(t, nil, args...)...)
				client.Await("#bytes")
				require.NoError(t, how.end(client))
				assert.Equal(t, how.code, client.Code(), "%s", client.Stderr)
				server.Await("the client's test failed")

				client = start(t, verbena(t, nil, args...)...)
				client.Await("#bytes")
				require.NoError(t, how.end(server))
				assert.Equal(t, how.code, server.Code(), "%s", server.Stderr)
				assert.Equal(t, 1, client.Code(), "%s", client.Stderr)
				assert.Contains(t, client.Stderr.String(), "verbena perf: "+test+": ")
			})
		}
	}
}

// runPerf makes every test between two hosts, with all data verified: over TCP, and by
// connection manager.
func runPerf(t *testing.T, from, to host, family string) {
	for _, way := range [][]string{nil, {"-R"}} {
		addr := to.addr(family)
		server := start(t, to.verbena(t, append([]string{"perf", "-d", to.device, "-bind", addr, "-once"}, way...)...)...)
		server.Await(": interrupt to stop")
		client := start(t, from.verbena(t, append([]string{"perf", "-d", from.device, "-test", "all", "-n", "20", "-t", "8", "-q", "2", "-b",
			"-s", "5000", "-warm-up", "1ms", "-verify", "-timeout", "5m", "-wait", "5m", addr}, way...)...)...)
		client.Succeed()
		assert.Equal(t, 12, strings.Count(client.Stderr.String(), "verified: "), "%s", client.Stderr)
		server.Succeed()
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

// verbena perf with the programs of perftest on rxe, in both roles, on the software device and
// on rxe. Short: on the software device.
func TestGuestPerftest(t *testing.T) {
	rxe, soft := guestHosts(t)
	for _, ours := range []host{soft, rxe} {
		if testing.Short() && ours.name == rxe.name {
			continue
		}
		for test, program := range map[string][]string{
			"write_bw": {"ib_write_bw", "-s", "8", "-t", "16"}, "read_bw": {"ib_read_bw", "-s", "5000", "-t", "16"},
			"send_bw": {"ib_send_bw", "-s", "5000", "-t", "16"}, "fetch_add_bw": {"ib_atomic_bw", "-t", "16"}, "compare_swap_bw": {"ib_atomic_bw", "-t", "16", "-A", "CMP_AND_SWAP"},
			"write_lat": {"ib_write_lat", "-s", "5000"}, "read_lat": {"ib_read_lat", "-s", "5000"}, "send_lat": {"ib_send_lat", "-s", "5000"},
			"fetch_add_lat": {"ib_atomic_lat"}, "compare_swap_lat": {"ib_atomic_lat", "-A", "CMP_AND_SWAP"},
		} {
			if testing.Short() && test != "read_bw" && test != "send_lat" && test != "write_lat" {
				continue
			}
			theirs := append(program[:len(program):len(program)], "-d", rxe.device, "-x", "1", "-n", "100")
			flags := []string{"perf", "-perftest", "-test", test, "-n", "100", "-t", "16", "-d", ours.device}
			if len(program) > 2 && program[1] == "-s" {
				flags = append(flags, "-s", program[2])
			}
			t.Run(ours.name+" "+test+", measured by verbena", func(t *testing.T) {
				server := start(t, theirs...)
				client := start(t, ours.verbena(t, append(flags, "-wait", "5m", rxe.v4)...)...) // it does not say when it listens
				assert.Zero(t, client.Code(), "%s\n%s", client.Stderr, server.Stderr)
				assert.Contains(t, client.Stderr.String(), "#iterations")
				server.Succeed()
			})
			t.Run(ours.name+" "+test+", measured by perftest", func(t *testing.T) {
				server := start(t, ours.verbena(t, append(flags, "-bind", ours.v4)...)...)
				server.Await(": interrupt to stop")
				client := start(t, append(theirs, ours.v4)...)
				client.Succeed()
				server.Succeed()
				assert.Contains(t, client.Stderr.String(), " 100 ")
			})
		}
	}
}
