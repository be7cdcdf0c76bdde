package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
	"github.com/verbena-rdma/verbena/test/process"
)

// pair is two hosts with several cables between them, and no default route.
type pair struct {
	server, client netns.Namespace
	cables         int
}

// cable connects the hosts by one more network, and returns the server's addresses there.
func (p *pair) cable(t *testing.T) (addrs []netip.Addr) {
	i := p.cables
	p.cables++
	p.server.IP(t, "link add n%d type veth peer name n%d netns %v", i, i, p.client)
	for side, n := range []netns.Namespace{p.server, p.client} {
		n.IP(t, "link set n%d addrgenmode none", i) // a generated address would be tentative for a while
		n.IP(t, "addr add 10.12.%d.%d/24 dev n%d", i, side+1, i)
		n.IP(t, "addr add fd12:%x::%d/64 dev n%d nodad", i, side+1, i)
	}
	p.client.IP(t, "link set n%d up", i)
	p.server.IP(t, "link set n%d up", i)
	return []netip.Addr{netip.AddrFrom4([4]byte{10, 12, byte(i), 1}), netip.MustParseAddr(fmt.Sprintf("fd12:%x::1", i))}
}

// Each server of the tool is reached at each address of its host, without a default route, and at those of
// an interface that comes later. It prints all of them. Short: without IPv6.
func TestServersOnAllAddresses(t *testing.T) {
	p := pair{server: netns.New(t), client: netns.New(t)}
	addrs := append(p.cable(t), p.cable(t)...)
	loopback := netip.MustParseAddr("127.0.0.1")
	at := func(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }
	succeed := func(t *testing.T, from netns.Namespace, args ...string) {
		client := start(t, verbena(t, from.Run(), args...)...)
		client.Succeed()
	}
	echo := startEcho(t, p.server)
	for _, c := range []struct {
		name   string
		server []string
		port   uint16
		client func(t *testing.T, from netns.Namespace, addr string)
		silent bool // the server does not print the addresses that come later
	}{
		{"ping", []string{"ping", "-s"}, 7174, func(t *testing.T, from netns.Namespace, addr string) {
			succeed(t, from, "ping", "-c", "1", "-t", patience.String(), addr)
		}, false},
		{"perf", []string{"perf"}, 18515, func(t *testing.T, from netns.Namespace, addr string) {
			succeed(t, from, "perf", "-n", "10", "-warm-up", "1ms", "-timeout", patience.String(), "-wait", patience.String(), addr)
		}, true},
		{"perf -R", []string{"perf", "-R", "-p", "18516"}, 18516, func(t *testing.T, from netns.Namespace, addr string) {
			succeed(t, from, "perf", "-R", "-n", "10", "-warm-up", "1ms", "-timeout", patience.String(), "-wait", patience.String(), addr)
		}, false},
		{"receive", []string{"receive", "-insecure", "-l", ":7470", t.TempDir()}, 7470, func(t *testing.T, from netns.Namespace, addr string) {
			succeed(t, from, "send", "-m", "a message", addr)
		}, false},
		{"proxy", []string{"proxy", "rdma:*:7471", "tcp:" + echo}, 7471, func(t *testing.T, from netns.Namespace, addr string) {
			back := start(t, verbena(t, from.Run(), "proxy", "tcp:7481", "rdma:"+addr)...)
			back.Await("listening on ")
			require.NoError(t, from.Do(func() error {
				conn, err := net.Dial("tcp", "127.0.0.1:7481")
				if err != nil {
					return err
				}
				defer func() { _ = conn.Close() }()
				if _, err := conn.Write([]byte("echo")); err != nil {
					return err
				}
				_, err = io.ReadFull(conn, make([]byte, 4))
				return err
			}))
			interrupted(back)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := start(t, verbena(t, p.server.Run(), c.server...)...)
			for _, a := range append(addrs, loopback) {
				server.Await(at(a, c.port))
			}
			assert.NotContains(t, server.Stderr.String(), "route to other machines")
			c.client(t, p.server, at(loopback, c.port))
			if c.name != "proxy" { // whose TARGET names a host
				c.client(t, p.server, at(netip.IPv6Unspecified(), c.port))
			}
			for _, a := range addrs {
				if a.Is4() || !testing.Short() {
					c.client(t, p.client, at(a, c.port))
				}
			}
			later := p.cable(t)
			if !c.silent {
				for _, a := range later {
					server.Await(at(a, c.port))
				}
			}
			c.client(t, p.client, at(later[0], c.port))
			interrupted(server)
			addrs = append(addrs, later...)
			if testing.Short() && len(addrs) > 6 { // the test is of interfaces, not of many
				addrs = addrs[:6]
			}
		})
	}
}

// Two servers have all addresses of their host, each on another port, though only one has the devices' UDP
// port: also those of lo outside of 127.0.0.0/8, those that a device gets later, and one that goes and comes
// back.
func TestTwoServersOnAllAddresses(t *testing.T) {
	p := pair{server: netns.New(t), client: netns.New(t)}
	p.server.IP(t, "addr add 10.13.0.1/32 dev lo")
	addrs := append(p.cable(t), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.13.0.1"))
	var servers []*process.Process
	ports := []uint16{7174, 7175}
	reach := func(a netip.Addr) {
		for i, port := range ports {
			to := netip.AddrPortFrom(a, port).String()
			servers[i].Await(" " + to)
			deadline := time.Now().Add(patience)
			for { // an address that goes and comes back is not served for a moment
				client := start(t, verbena(t, p.server.Run(), "ping", "-c", "1", "-t", patience.String(), to)...)
				if client.Wait() == nil {
					break
				}
				require.True(t, time.Now().Before(deadline), "%s", client.Stderr)
			}
		}
	}
	for _, port := range ports {
		server := start(t, verbena(t, p.server.Run(), "ping", "-s", "-p", fmt.Sprint(port))...)
		server.Await("interrupt to stop")
		servers = append(servers, server)
	}
	for _, a := range addrs {
		reach(a)
	}
	for _, later := range []struct{ addr, dev string }{{"10.13.0.2/32", "lo"}, {"10.12.0.9/24", "n0"}} {
		a := netip.MustParsePrefix(later.addr).Addr()
		p.server.IP(t, "addr add %s dev %s", later.addr, later.dev)
		reach(a)
		p.server.IP(t, "addr del %s dev %s", later.addr, later.dev)
		p.server.IP(t, "addr add %s dev %s", later.addr, later.dev)
		reach(a)
	}
	for _, server := range servers {
		interrupted(server)
	}
}

// A receiver at all addresses goes on when the address of a transfer goes, and the sender continues when it
// is there again. Short: not at all.
func TestReceiverLosesAddress(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it waits until the sender's packets have been retransmitted for seconds")
	}
	p := pair{server: netns.New(t), client: netns.New(t)}
	addrs := p.cable(t)
	p.server.IP(t, "addr del %v/64 dev n0", addrs[1])
	from, into := filepath.Join(t.TempDir(), "d"), t.TempDir()
	require.NoError(t, os.Mkdir(from, 0o700))
	const files = 3000
	content := func(i int) string { return fmt.Sprintf("file %d", i) }
	for i := range files {
		require.NoError(t, os.WriteFile(filepath.Join(from, fmt.Sprint(i)), []byte(content(i)), 0o600))
	}
	receiver := start(t, verbena(t, p.server.Run(), "receive", "-v", "-once", "-sync", "-retry", patience.String(), "-insecure", "-l", ":7470", into)...)
	at := netip.AddrPortFrom(addrs[0], 7470).String()
	receiver.Await(at)
	sender := start(t, verbena(t, p.client.Run(), "send", "-retry", patience.String(), from, at)...)
	receiver.Await("d/")
	sender.Send(syscall.SIGSTOP) // it would have ended before a slow ip
	p.server.IP(t, "addr del %v/24 dev n0", addrs[0])
	sender.Send(syscall.SIGCONT)
	receiver.Await("from 10.12.0.2: ")
	p.server.IP(t, "addr add %v/24 dev n0", addrs[0])
	sender.Succeed()
	receiver.Succeed()
	for i := range files {
		got, err := os.ReadFile(filepath.Join(into, "d", fmt.Sprint(i)))
		require.NoError(t, err)
		require.Equal(t, content(i), string(got))
	}
}

// startEcho starts a TCP server in the namespace that returns what it gets, and returns its address.
func startEcho(t *testing.T, n netns.Namespace) string {
	var l net.Listener
	require.NoError(t, n.Do(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		<-ended
	})
	return l.Addr().String()
}

// A port that another program has at one address is free at no address: the error names it.
func TestServerNamesAddressInUse(t *testing.T) {
	p := pair{server: netns.New(t), client: netns.New(t)}
	p.cable(t)
	second := p.cable(t)
	first := start(t, verbena(t, p.server.Run(), "ping", "-s", second[0].String())...)
	first.Await("listening")
	all := start(t, verbena(t, p.server.Run(), "ping", "-s")...)
	require.NotZero(t, all.Code())
	for _, part := range []string{second[0].String(), "interface n1"} {
		assert.True(t, strings.Contains(all.Stderr.String(), part), "%s", &all.Stderr)
	}
	interrupted(first)
}
