package rsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/process"
	"github.com/verbena-rdma/verbena/test/netns"
)

// dialTo is the environment variable with the network and the address that a process dials, or that it
// listens at ("listen").
const dialTo = "VERBENA_TEST_DIAL"

// dialled is the result of a dial: the name of what a program distinguishes.
func dialled(err error) string {
	for name, kind := range map[string]error{
		"ECONNREFUSED": syscall.ECONNREFUSED, "EHOSTUNREACH": syscall.EHOSTUNREACH, "ENETUNREACH": syscall.ENETUNREACH,
		"ETIMEDOUT": syscall.ETIMEDOUT, "EINVAL": syscall.EINVAL, "EACCES": syscall.EACCES, "deadline": os.ErrDeadlineExceeded,
	} {
		if errors.Is(err, kind) {
			return name
		}
	}
	if err != nil {
		return err.Error()
	}
	return "connected"
}

// dialOnce is a process that dials, prints the result, and says why.
func dialOnce(to string) int {
	network, addr, _ := strings.Cut(to, " ")
	if network == "listen" {
		l, err := Listen(addr)
		fmt.Println("listening", err)
		if err == nil {
			_, err = l.Accept() // for ever
		}
		fmt.Println(err)
		return 0
	}
	dial := (&net.Dialer{}).DialContext
	if network == "rdma" {
		dial = DialContext
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	c, err := dial(ctx, "tcp", addr)
	fmt.Println("result", dialled(err))
	fmt.Println(err)
	if err == nil {
		_ = c.Close()
	}
	return 0
}

// What a dial fails with is what TCP fails with, by UDP and to this machine.
func TestDialFailsAsTCP(t *testing.T) {
	hosts := netns.Hosts(t, 2, 1500)
	here, there := hosts[0], hosts[1]
	_, err := here.Command(t.Context(), "sh", "-c", "echo 3 > /proc/sys/net/ipv4/tcp_syn_retries") // 15 s, and not two minutes
	require.NoError(t, err)
	here.IP(t, "route add unreachable 10.66.0.0/16")
	here.IP(t, "route add prohibit 10.67.0.0/16")
	there.IP(t, "addr add 10.11.0.9/24 dev %s", netns.Link)
	_, err = there.Command(t.Context(), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv4/icmp_ratelimit")
	require.NoError(t, err)
	_, err = there.Command(t.Context(), "sh", "-c", "cd /proc/sys/net/ipv6; echo 1 > conf/all/forwarding; echo 0 > icmp/ratelimit")
	require.NoError(t, err)
	for n, kind := range []string{"blackhole", "unreachable", "prohibit", ""} {
		for network, via := range map[string]netip.Addr{fmt.Sprintf("10.%d.0.0/16", 68+n): there.V4, fmt.Sprintf("fd%d::/16", 68+n): there.V6} {
			here.IP(t, "route add %s via %v", network, via)
			if kind != "" {
				there.IP(t, "route add %s %s", kind, network)
			}
		}
	}
	run := func(n netns.Namespace, to string) *process.Process {
		p, err := process.Start(t.Context(), process.Program{Args: append(n.Run(), "env", dialTo+"="+to, os.Args[0])})
		require.NoError(t, err)
		t.Cleanup(p.Kill)
		return p
	}
	result := func(network, addr string) (kind, why string) {
		p := run(here.Namespace, network+" "+addr)
		require.NoError(t, p.Await(t.Context(), "result "))
		_ = p.Wait()
		line, rest, _ := strings.Cut(p.Stdout.String(), "\n")
		return strings.TrimPrefix(line, "result "), strings.TrimSpace(rest)
	}
	listen := func(n netns.Namespace, addr string) {
		require.NoError(t, run(n, "listen "+addr).Await(t.Context(), "listening <nil>"))
	}
	for _, c := range []struct {
		name, addr, want string
		slow             bool
	}{
		{"a host where nobody has a device", there.V4.String() + ":7", "ECONNREFUSED", false},
		{"the same, IPv6", "[" + there.V6.String() + "]:7", "ECONNREFUSED", false},
		{"a port that nobody has at a device", "10.11.0.9:8", "ECONNREFUSED", false},
		{"port 0", "10.11.0.9:0", "ECONNREFUSED", false},
		{"this machine, nobody listens (shared memory)", "127.0.0.1:8", "ECONNREFUSED", false},
		{"this machine, another address", here.V4.String() + ":8", "ECONNREFUSED", false},
		{"this machine, unspecified", "0.0.0.0:8", "ECONNREFUSED", false},
		{"a network without a route", "203.0.113.9:7", "ENETUNREACH", false},
		{"the same, IPv6", "[2001:db8::9]:7", "ENETUNREACH", false},
		{"a network that a route declares unreachable", "10.66.0.1:7", "EHOSTUNREACH", false},
		{"a network that a route prohibits", "10.67.0.1:7", "EACCES", false},
		{"a network that the router cannot reach", "10.69.0.1:7", "EHOSTUNREACH", false},
		{"a firewall that says so", "10.70.0.1:7", "EHOSTUNREACH", false},
		{"the same, IPv6", "[fd70::1]:7", "EACCES", false},
		{"a network that the router cannot reach, IPv6", "[fd69::1]:7", "ENETUNREACH", false},
		{"a network that the router does not know", "10.71.0.1:7", "ENETUNREACH", false},
		{"the same, IPv6", "[fd71::1]:7", "ENETUNREACH", false},
		{"a firewall that drops packets", "10.68.0.1:7", "ETIMEDOUT", true},
		{"a broadcast address", "10.11.0.255:7", "ENETUNREACH", false},
		{"a multicast group", "[ff02::1%" + netns.Link + "]:7", "ENETUNREACH", false},
		{"a link-local address without a zone", "[fe80::1]:7", "EINVAL", false},
		{"a host that is down", "10.11.0.77:7", "EHOSTUNREACH", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.addr == "10.11.0.9:8" { // from here on, the hosts have devices
				listen(there.Namespace, "10.11.0.9:7")
				listen(here.Namespace, "127.0.0.1:7")
			}
			if c.slow && testing.Short() {
				t.Skip("it takes seconds")
			}
			tcp, why := result("tcp", c.addr)
			t.Logf("TCP:  %s: %s", tcp, why)
			rdma, why := result("rdma", c.addr)
			t.Logf("rdma: %s: %s", rdma, why)
			require.Equal(t, c.want, tcp, "the test is wrong")
			require.Equal(t, tcp, rdma, why)
		})
	}
}
