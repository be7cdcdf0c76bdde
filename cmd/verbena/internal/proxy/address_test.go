package proxy

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/rsocket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAddresses(t *testing.T) {
	for text, want := range map[string]address{
		"tcp:8080":                {"tcp", "", 8080},
		"tcp::8080":               {"tcp", "", 8080},
		"tcp:*:8080":              {"tcp", "*", 8080},
		"tcp:0.0.0.0:0":           {"tcp", "0.0.0.0", 0},
		"tcp:[::]:65535":          {"tcp", "::", 65535},
		"rdma:server:7471":        {"rdma", "server", 7471},
		"rdma:192.0.2.7:7471":     {"rdma", "192.0.2.7", 7471},
		"rdma:[2001:db8::7]:7471": {"rdma", "2001:db8::7", 7471},
		"tcp:[fe80::1%eth0]:1":    {"tcp", "fe80::1%eth0", 1},
	} {
		a, err := parseAddress(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, a, text)
		again, err := parseAddress(a.String())
		require.NoError(t, err, a)
		assert.Equal(t, a, again)
	}
}

func TestWrongAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "shell variable",
		"8080":                    "which network",
		"host:8080":               "which network",
		"udp:host:8080":           "which network",
		"TCP:8080":                "which network",
		"tcp":                     "which network",
		"tcp:":                    "no port",
		"tcp:host":                "no port",
		"tcp:host:":               "no port",
		"tcp:host:http":           "no port",
		"tcp:host:65536":          "no port",
		"tcp:-1":                  "no port",
		"tcp:2001:db8::7:80":      "in brackets",
		"tcp:[2001:db8::7:80":     "in brackets",
		"tcp:[2001:db8::7]":       "in brackets",
		"rdma:[2001:db8::7]x:80":  "in brackets",
		"tcp://host:80":           "without slashes",
		"tcp:user@host:80":        "not the name",
		"tcp:a b:80":              "not the name",
		"tcp:127.0.0.1/8:80":      "not the name",
		"rdma:host:\x1bc":         "no port",
		"tcp:99999999999999999:1": "",
	} {
		_, err := parseAddress(text)
		if want == "" {
			require.NoError(t, err, "%q: a name that does not exist", text)
			continue
		}
		require.ErrorContains(t, err, want, "%q", text)
		assert.NotContains(t, err.Error(), "\x1b", "a terminal must not obey it")
	}
	for text, want := range map[string]string{
		"tcp:8080":              "write tcp:localhost:8080",
		"rdma:*:7471":           "not the address of one host",
		"tcp:host:0":            "must be 1 to 65535",
		"tcp:0.0.0.0:80":        "unspecified",
		"tcp:[::]:80":           "unspecified",
		"rdma:224.0.0.1:80":     "multicast",
		"tcp:255.255.255.255:1": "broadcast",
		"nonsense":              "which network",
	} {
		_, err := parseTarget(text)
		require.ErrorContains(t, err, want, text)
	}
	a, err := parseTarget("tcp:[::1]:80")
	require.NoError(t, err)
	assert.Equal(t, "[::1]:80", a.hostPort())
}

func TestWrongCommandLines(t *testing.T) {
	for _, c := range []struct {
		want string
		args []string
	}{
		{"give two", nil},
		{"give two", []string{"tcp:1"}},
		{"give two", []string{"tcp:1", "tcp:a:2", "-v"}},
		{"LISTEN: ", []string{"1", "tcp:a:2"}},
		{"TARGET: ", []string{"tcp:1", "2"}},
		{"-max is 0", []string{"-max", "0", "tcp:1", "tcp:a:2"}},
		{"-max is 65537", []string{"-max", "65537", "tcp:1", "tcp:a:2"}},
		{"-t is 0s", []string{"-t", "0", "tcp:1", "tcp:a:2"}},
		{"-idle and -grace", []string{"-idle", "-1s", "tcp:1", "tcp:a:2"}},
		{"-idle and -grace", []string{"-grace", "-1s", "tcp:1", "tcp:a:2"}},
		{"-d is empty", []string{"-d", "", "tcp:1", "rdma:a:2"}},
		{"both addresses are of TCP", []string{"-d", "soft-lo", "tcp:1", "tcp:a:2"}},
		{"-h lists the flags", []string{"-idle", "5", "tcp:1", "tcp:a:2"}},
		{"-h lists the flags", []string{"-nothing", "tcp:1", "tcp:a:2"}},
	} {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, exit.Usage, Main(t.Context(), c.args, &stdout, &stderr), c.args)
		assert.Contains(t, stderr.String(), c.want, c.args)
		assert.Empty(t, stdout.String())
	}
	var stdout, stderr bytes.Buffer
	assert.Equal(t, exit.OK, Main(t.Context(), []string{"-h"}, &stdout, &stderr))
	for _, part := range []string{"LISTEN TARGET", "%eth0", "-idle", "-max", "-grace", "-t "} {
		assert.Contains(t, stdout.String(), part)
	}
}

func TestLoops(t *testing.T) {
	at := func(network, text string) net.Addr {
		a := netip.MustParseAddrPort(text)
		if network == "rdma" {
			return &rsocket.Addr{AddrPort: a}
		}
		return net.TCPAddrFromAddrPort(a)
	}
	for _, c := range []struct {
		target, listener string
		loops            bool
	}{
		{"tcp:127.0.0.1:80", "127.0.0.1:80", true},
		{"tcp:localhost:80", "127.0.0.1:80", true},
		{"tcp:127.0.0.1:80", "127.0.0.1:81", false},
		{"rdma:127.0.0.1:80", "127.0.0.1:80", false},
		{"tcp:127.0.0.2:80", "127.0.0.1:80", false},
		{"tcp:127.0.0.2:80", "0.0.0.0:80", true},
		{"tcp:[::1]:80", "[::]:80", true},
		{"tcp:[::1]:80", "0.0.0.0:80", false},
		{"tcp:127.0.0.1:80", "[::]:80", true},
		{"tcp:192.0.2.7:80", "[::]:80", false},
		{"tcp:no-such-host.invalid:80", "127.0.0.1:80", false},
	} {
		target, err := parseTarget(c.target)
		require.NoError(t, err)
		listen := address{"tcp", netip.MustParseAddrPort(c.listener).Addr().String(), 80}
		assert.Equal(t, c.loops, loops(t.Context(), target, listen, at("tcp", c.listener)), "%v", c)
	}
	for _, c := range []struct {
		listen, listener, target string
		loops                    bool
	}{
		{"rdma:80", "127.0.0.2:80", "rdma:127.0.0.1:80", true},
		{"rdma:80", "127.0.0.2:80", "rdma:127.0.0.2:80", true},
		{"rdma:80", "127.0.0.2:80", "rdma:127.0.0.3:80", false},
		{"rdma:80", "127.0.0.2:80", "rdma:127.0.0.1:81", false},
		{"rdma:80", "127.0.0.2:80", "tcp:127.0.0.1:80", false},
		{"rdma:127.0.0.3:80", "127.0.0.2:80", "rdma:127.0.0.3:80", true},
		{"rdma:127.0.0.3:80", "127.0.0.2:80", "rdma:127.0.0.1:80", false},
		{"rdma:*:80", "[::]:80", "rdma:127.0.0.1:80", true},
		{"rdma:localhost:80", "127.0.0.2:80", "rdma:localhost:80", true},
		{"rdma:localhost:80", "127.0.0.2:80", "rdma:[::1]:80", false},
		{"tcp:localhost:80", "127.0.0.1:80", "tcp:[::1]:80", false},
	} {
		listen, err := parseAddress(c.listen)
		require.NoError(t, err)
		target, err := parseTarget(c.target)
		require.NoError(t, err)
		assert.Equal(t, c.loops, loops(t.Context(), target, listen, at(listen.network, c.listener)), "%v", c)
	}
	own, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range own {
		if p := a.(*net.IPNet); p.IP.To4() != nil {
			assert.True(t, loops(t.Context(), address{"tcp", p.IP.String(), 80}, address{"tcp", "*", 80}, at("tcp", "[::]:80")), "%v is of this machine", p)
		}
	}
}
