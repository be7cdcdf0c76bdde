//go:build unix

package samples

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/internal/pair"
	"github.com/verbena-rdma/verbena/test/soak"
)

// freeRDMAPort returns a port on which, most likely, no program listens.
func freeRDMAPort() string { return fmt.Sprint(20_000 + rand.IntN(40_000)) }

// succeed waits for programs that must succeed.
func succeed(t *testing.T, list ...*process) {
	t.Helper()
	for _, p := range list {
		assert.Zero(t, p.code(), "%v\n%s%s", p.cmd.Args, p.stdout.String(), p.stderr.String())
	}
}

// Every pair connects by address: make test has two of them, and make soak-tests all.
func TestSoakByAddress(t *testing.T) {
	var pairs []pair.Pair
	for _, p := range pair.Samples() {
		if p.Datagrams {
			continue
		}
		switch p.Requester {
		case "rdma_multi_conn_send": // see below
		case "rdma_write_requester", "rdma_sync_event_requester":
			pairs = slices.Insert(pairs, 0, p)
		default:
			pairs = append(pairs, p)
		}
	}
	for i, p := range pairs[:min(soak.Rounds(t, 2, len(pairs)), len(pairs))] {
		t.Run(p.Requester, func(t *testing.T) {
			t.Parallel()
			port := freeRDMAPort()
			requester := start(t, p.Requester, "-cm", "-lp", port, "-sa", []string{"localhost", "127.0.0.1"}[i%2], "-timeout", patience)
			responder := start(t, p.Responder, "--use-rdma-cm", "--listen-port", port, "-timeout", patience)
			succeed(t, requester, responder)
		})
	}
}

// A server sends to a number of clients, or receives from them. Clients may come first.
func TestMultipleConnectionsByAddress(t *testing.T) {
	for _, server := range []string{"rdma_multi_conn_send", "rdma_multi_conn_receive"} {
		for _, n := range []int{1, 8} {
			t.Run(fmt.Sprintf("%s, %d clients", server, n), func(t *testing.T) {
				t.Parallel()
				client := "rdma_multi_conn_receive"
				if server == client {
					client = "rdma_multi_conn_send"
				}
				port := freeRDMAPort()
				var clients []*process
				for i := range n {
					args := []string{client, "-cm", "-lp", port, "-sa", "127.0.0.1", "-sat", "ipv4", "-timeout", patience}
					if client == "rdma_multi_conn_send" {
						args = append(args, "-s", fmt.Sprintf("of client %d", i))
					}
					clients = append(clients, start(t, args...))
				}
				s := start(t, server, "-cm", "-lp", port, "-nc", fmt.Sprint(n), "-timeout", patience)
				succeed(t, append(slices.Clone(clients), s)...)
				if server == "rdma_multi_conn_send" {
					for _, c := range clients {
						assert.Contains(t, c.stdout.String(), `received on connection 0: "Hello from the sender!"`)
					}
					return
				}
				for i := range n {
					assert.Equal(t, 1, strings.Count(s.stdout.String(), fmt.Sprintf(`: "of client %d"`, i)))
				}
			})
		}
	}
}

func TestByAddressUsage(t *testing.T) {
	for _, test := range []struct{ command, want string }{
		{"rdma_write_requester -cm", "-cm needs -sa, the address of rdma_write_responder"},
		{"rdma_write_requester -sa localhost", "-lp, -sa and -sat need -cm"},
		{"rdma_write_requester -cm -sa 10.0.0.1 -sat ipv6", "want ipv4, ipv6 or gid, and an address of that type"},
		{"rdma_write_requester -cm -sa 10.0.0.1 -sat mac", "want ipv4, ipv6 or gid"},
		{"rdma_write_responder -cm -oob dir", "-cm excludes -oob"},
		{"rdma_write_responder -cm -lp 0", "want a number from 1 to 65535"},
		{"rdma_write_responder -cm -sa localhost", "flag provided but not defined: -sa"},
		{"rdma_multi_conn_send -cm -sa localhost -nc 2", "-nc is only for the server"},
	} {
		p := start(t, strings.Fields(test.command)...)
		assert.Equal(t, 2, p.code())
		assert.Contains(t, p.lastLine(), test.want, test.command)
	}
}

// cm_rping with itself: a server of one client, and a persistent one. TestGuestRping has it
// with rping.
func TestRping(t *testing.T) {
	for _, persistent := range []string{"-v", "-P"} {
		port := freeRDMAPort()
		server := start(t, "cm_rping", "-s", "-v", persistent, "-p", port, "-timeout", patience)
		server.await("the context is Running")
		for round := range 2 {
			var clients []*process
			for range 1 + 3*round {
				clients = append(clients, start(t, "cm_rping", "-c", "-v", "-V", "-a", "127.0.0.1", "-p", port, "-S", "65535", "-C", "3", "-timeout", patience))
			}
			succeed(t, clients...)
			for _, c := range clients {
				assert.Equal(t, 3, strings.Count(c.stdout.String(), "client ping data: rdma-ping-"))
			}
			if persistent == "-v" {
				break
			}
		}
		if persistent == "-P" {
			server.interrupted(syscall.SIGINT, 130)
		} else {
			succeed(t, server)
		}
	}
	for _, args := range [][]string{{}, {"-s", "-c"}, {"-c", "-S", "25"}, {"-c", "-S", "65536"}} {
		p := start(t, append([]string{"cm_rping"}, args...)...)
		assert.Equal(t, 1, p.code())
		assert.Contains(t, p.lastLine(), "give -s or -c, and -S from 26 to 65535")
	}
}

func TestHello(t *testing.T) {
	port := freeRDMAPort()
	server := start(t, "cm_hello", "-p", port, "-timeout", patience)
	server.await("waiting for the peer at :")
	client := start(t, "cm_hello", "-c", "localhost", "-p", port, "-s", "hello?", "-timeout", patience)
	succeed(t, client)
	assert.Contains(t, client.stdout.String(), `says "Hello!"`)
	assert.Contains(t, client.stderr.String(), `the server's private data: "welcome"`)
	server.interrupted(syscall.SIGINT, 130)
	assert.Contains(t, server.stdout.String(), `says "hello?"`)
}

// If no server listens, a client reports that and ends, even without -timeout.
func TestNobodyListens(t *testing.T) {
	for text, args := range map[string][]string{
		"cm_hello: waiting for the peer at 127.0.0.1:": {"cm_hello", "-c", "127.0.0.1"},
		"cm_rping: connecting to 127.0.0.1:":           {"cm_rping", "-c", "-a", "127.0.0.1"},
	} {
		p := start(t, append(args, "-p", freeRDMAPort())...)
		assert.Equal(t, 1, p.code())
		assert.Contains(t, p.stderr.String(), text)
		assert.Contains(t, p.lastLine(), "nobody listens on that port")
	}
	// A client that cannot get an answer reports how long it waited, and for which server.
	p := start(t, "cm_rping", "-c", "-d", "soft-lo?loss=1", "-a", "127.0.0.1", "-p", freeRDMAPort(), "-timeout", "100ms")
	assert.Equal(t, 1, p.code())
	assert.NotContains(t, p.lastLine(), "after 0s")
}

// If one end of cm_rping leaves early, or is killed, the other reports that rounds are missing.
func TestRpingEndsEarly(t *testing.T) {
	for _, device := range []string{"soft-lo", "soft-lo?local=off"} {
		for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
			for _, first := range []string{"server", "client"} {
				port := freeRDMAPort()
				server := start(t, "cm_rping", "-s", "-d", device, "-p", port)
				server.await("the context is Running")
				client := start(t, "cm_rping", "-c", "-v", "-d", device, "-a", "127.0.0.1", "-p", port, "-C", "1000000000")
				<-client.stdout.watch("rdma-ping-3:")
				victim, other := server, client
				if first == "client" {
					victim, other = client, server
				}
				victim.signal(signal)
				want := 130
				if signal == syscall.SIGKILL {
					want = -1
				}
				assert.Equal(t, want, victim.code(), victim.stderr.String())
				if code := other.code(); other == client || signal == syscall.SIGKILL { // a client that is told to end may do so between rounds
					assert.Equal(t, 1, code, "%s %s %v: %s", first, device, signal, other.stderr.String())
				}
			}
		}
	}
}

// Programs that wait for a peer print which peer, and at which address.
func TestPrintsWhatItWaitsFor(t *testing.T) {
	for text, command := range map[string][]string{
		"waiting for the server: dial tcp 127.0.0.1:1": {"efa_rdma_write_client", "-s", "127.0.0.1:1"},
		"waiting for the server: dial tcp 127.0.0.1:2": {"verbs_rc_example_client", "-s", "127.0.0.1:2"},
		"waiting for a client on 127.0.0.1:":           {"verbs_rc_example_server", "-p", "127.0.0.1:0"},
	} {
		p := start(t, command...)
		p.await(text)
		p.interrupted(syscall.SIGINT, 130)
	}
}
