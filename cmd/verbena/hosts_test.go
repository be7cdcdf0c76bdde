package main

import (
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
)

// host is where a program runs, and by which device.
type host struct {
	name, device string
	run          []string // before a command
	v4, v6       string
	race         bool // with the race detector, if the test has it
}

// verbena is a command of the program on the host.
func (h *host) verbena(t *testing.T, args ...string) []string {
	command := verbena(t, h.run, args...)
	if h.race {
		command[len(h.run)] = os.Args[0]
	}
	return command
}

func (h *host) addr(family string) string {
	if family == "IPv6" {
		return h.v6
	}
	return h.v4
}

// runTransfer sends a file and a message from one host to the other.
func runTransfer(t *testing.T, from, to host, family string) {
	at := net.JoinHostPort(to.addr(family), "7470")
	source, dir := filepath.Join(t.TempDir(), "some data"), t.TempDir()
	data := make([]byte, 3<<20+17)
	_, _ = rand.Read(data)
	require.NoError(t, os.WriteFile(source, data, 0o644))
	for _, what := range [][]string{{source}, {"-m", "a message"}} {
		receive := start(t, to.verbena(t, "receive", "-d", to.device, "-l", at, "-once", dir)...)
		receive.Await("listening on")
		send := start(t, from.verbena(t, append(append([]string{"send", "-d", from.device}, what...), at)...)...)
		send.Succeed()
		receive.Succeed()
		if what[0] == "-m" {
			assert.Contains(t, receive.Stderr.String(), "a message")
		}
	}
	got, err := os.ReadFile(filepath.Join(dir, "some data"))
	require.NoError(t, err)
	assert.Equal(t, data, got)
}

// runPing pings one host from the other.
func runPing(t *testing.T, from, to host, family string) {
	addr := to.addr(family)
	server := start(t, to.verbena(t, "ping", "-s", "-d", to.device, "-t", patience.String(), addr)...)
	server.Await("listening")
	client := start(t, from.verbena(t, "ping", "-d", from.device, "-c", "3", "-t", patience.String(), addr)...)
	client.Succeed()
	assert.Contains(t, client.Stderr.String(), "RDMA works")
	interrupted(server)
}

// Two hosts, which are network namespaces with a cable between them.
func TestTwoHosts(t *testing.T) {
	var hosts []host
	for i, h := range netns.Hosts(t, 2, 1500) {
		hosts = append(hosts, host{string(rune('a' + i)), "soft-" + netns.Link, h.Run(), h.V4.String(), h.V6.String(), false})
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) {
			for i := range hosts {
				hosts[i].race = family == "IPv4"
			}
			runPing(t, hosts[0], hosts[1], family)
			runTransfer(t, hosts[0], hosts[1], family)
			runPerf(t, hosts[0], hosts[1], family)
		})
	}
}

// guestHosts are the hosts of the guest of test/rig: that of the kernel's rxe, and the
// network namespace s.
func guestHosts(t *testing.T) (rxe, soft host) {
	t.Helper()
	if os.Getenv("VERBENA_GUEST") == "" {
		t.Skip("runs in the guest of TestRig of test/rig")
	}
	return host{"rxe", "rxe0", nil, "10.0.0.1", "fd00::1", false},
		host{"soft", "soft-v1", []string{"ip", "netns", "exec", "s"}, "10.0.0.2", "fd00::2", false}
}

// forGuestFamilies runs a test with IPv4 and IPv6.
func forGuestFamilies(t *testing.T, short bool, test func(t *testing.T, family string)) {
	for _, family := range []string{"IPv4", "IPv6"} {
		if short && family == "IPv6" {
			continue
		}
		t.Run(family, func(t *testing.T) { test(t, family) })
	}
}

// verbena ping with itself, by the kernel's connection manager at one end or both.
// Short: without IPv6, and not between rxe and itself.
func TestGuestPing(t *testing.T) {
	rxe, soft := guestHosts(t)
	forGuestFamilies(t, testing.Short(), func(t *testing.T, family string) {
		for _, hosts := range [][2]host{{rxe, soft}, {soft, rxe}, {rxe, rxe}} {
			if testing.Short() && hosts[0].name == hosts[1].name {
				continue
			}
			t.Run(hosts[0].name+" to "+hosts[1].name, func(t *testing.T) { runPing(t, hosts[0], hosts[1], family) })
		}
	})
}

// verbena ping with rping, which is on rxe. Short: without IPv6.
func TestGuestPingAndRping(t *testing.T) {
	rxe, soft := guestHosts(t)
	forGuestFamilies(t, testing.Short(), func(t *testing.T, family string) {
		for _, ours := range []host{soft, rxe} {
			t.Run(ours.name+", rping serves", func(t *testing.T) {
				addr := rxe.addr(family)
				server := start(t, "rping", "-s", "-a", addr, "-V")
				for limit := time.Now().Add(patience); ; {
					client := start(t, ours.verbena(t, "ping", "-d", ours.device, "-c", "3", "-t", patience.String(), addr)...)
					if client.Code() != 0 && strings.Contains(client.Stderr.String(), "nobody listens") {
						require.Less(t, time.Now(), limit)
						continue // rping does not say when it does
					}
					assert.Zero(t, client.Code(), "%s\n%s", client.Stderr, server.Stderr)
					assert.Contains(t, client.Stderr.String(), "a server of rping's protocol")
					assert.Contains(t, client.Stderr.String(), "RDMA works")
					break
				}
				server.Code() // it calls it an error that its peer disconnects
			})
			t.Run(ours.name+", rping asks", func(t *testing.T) {
				addr := ours.addr(family)
				server := start(t, ours.verbena(t, "ping", "-s", "-d", ours.device, "-t", patience.String(), addr)...)
				server.Await("listening")
				for _, size := range []string{"26", "65535"} {
					client := start(t, "rping", "-c", "-a", addr, "-V", "-C", "3", "-S", size)
					// rping may close its event channel while another of its threads reads it.
					if code := client.Code(); code != 255 || !strings.Contains(client.Stderr.String(), "rdma_get_cm_event: Bad file descriptor") {
						assert.Zero(t, code, "%s", client.Stderr)
					}
				}
				interrupted(server)
			})
		}
	})
}

// verbena send and verbena receive, by the kernel's connection manager at one end or both.
// Short: without IPv6, and not between rxe and itself.
func TestGuestTransfer(t *testing.T) {
	rxe, soft := guestHosts(t)
	forGuestFamilies(t, testing.Short(), func(t *testing.T, family string) {
		for _, hosts := range [][2]host{{rxe, soft}, {soft, rxe}, {rxe, rxe}} {
			if testing.Short() && hosts[0].name == hosts[1].name {
				continue
			}
			t.Run(hosts[0].name+" to "+hosts[1].name, func(t *testing.T) { runTransfer(t, hosts[0], hosts[1], family) })
		}
	})
}
