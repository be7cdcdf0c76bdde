package samples

import (
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startServer starts a ping-pong server and waits until it listens.
func startServer(t *testing.T, service string, args ...string) *process {
	t.Helper()
	p := startPingPong(t, service, args...)
	p.await("waiting for a client on TCP port")
	return p
}

func startPingPong(t *testing.T, service string, args ...string) *process {
	t.Helper()
	return start(t, append([]string{"verbs_" + service + "_pingpong"}, args...)...)
}

// said returns everything that the program printed.
func (p *process) said() string { return p.stdout.String() + p.stderr.String() }

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

var addressLine = regexp.MustCompile(`(?m)^  (local|remote) address: +(LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID ::ffff:127\.[0-9.]+)$`)

func TestPingPong(t *testing.T) {
	cases := []struct {
		services   []string
		size, iter int
		args       []string
	}{
		{[]string{"rc", "uc"}, 4096, 100, []string{"-c"}},
		{[]string{"ud"}, 1024, 100, []string{"-c"}},
		{[]string{"rc", "uc", "ud"}, 0, 10, nil},
		{[]string{"rc", "uc", "ud"}, 1, 50, []string{"-e", "-r", "1"}},
		{[]string{"rc", "uc"}, 100_001, 20, []string{"--events", "--chk", "--mtu=256", "-r", "3"}},
		{[]string{"rc"}, 16 << 20, 2, []string{"-c", "-m", "4096"}},
		{[]string{"ud"}, 4096, 20, []string{"-e", "-c", "--sl", "3"}},
	}
	for _, g := range cases {
		for _, service := range g.services {
			t.Run(fmt.Sprintf("%s/%d/%s", service, g.size, strings.Join(g.args, " ")), func(t *testing.T) {
				args := append([]string{"-d", "soft-lo", "-p", freePort(t), "-s", strconv.Itoa(g.size), "-n", strconv.Itoa(g.iter)}, g.args...)
				server := startServer(t, service, args...)
				client := startPingPong(t, service, append(args, "127.0.0.1")...)
				require.Zero(t, client.code(), client.said())
				require.Zero(t, server.code(), server.said())
				clientOut, serverOut := client.stdout.String(), server.stdout.String()
				a, b := addressLine.FindAllStringSubmatch(clientOut, -1), addressLine.FindAllStringSubmatch(serverOut, -1)
				require.Len(t, a, 2, clientOut)
				require.Len(t, b, 2, serverOut)
				assert.Equal(t, a[0][2], b[1][2], "the client's address")
				assert.Equal(t, a[1][2], b[0][2], "the server's address")
				for _, out := range []string{clientOut, serverOut} {
					assert.Contains(t, out, fmt.Sprintf("\n%d bytes in ", 2*g.size*g.iter))
					assert.Contains(t, out, fmt.Sprintf("\n%d iters in ", g.iter))
				}
			})
		}
	}
}

// A server with -c detects that the client sends other data.
func TestPingPongValidates(t *testing.T) {
	for _, service := range []string{"rc", "uc", "ud"} {
		args := []string{"-d", "soft-lo", "-p", freePort(t), "-n", "5"}
		server := startServer(t, service, append(args, "-c")...)
		client := startPingPong(t, service, append(args, "localhost")...)
		assert.Zero(t, client.code(), client.said())
		assert.Equal(t, 1, server.code())
		assert.Contains(t, server.stderr.String(), "invalid data in page 0")
	}
}

// Impossible options are refused with one clear line.
func TestPingPongRefuses(t *testing.T) {
	port := freePort(t)
	for _, c := range []struct {
		service string
		args    []string
		code    int
		want    string
	}{
		{"rc", []string{"-o"}, 2, "on-demand paging is not supported"},
		{"rc", []string{"--ts"}, 2, "completions with timestamps is not supported"},
		{"rc", []string{"-j"}, 2, "device memory is not supported"},
		{"uc", []string{"-o"}, 2, "flag provided but not defined: -o"},
		{"ud", []string{"-m", "1024"}, 2, "flag provided but not defined: -m"},
		{"rc", []string{"-m", "1000"}, 2, "want 256, 512, 1024, 2048 or 4096"},
		{"rc", []string{"-n", "0"}, 2, "want a number from 1"},
		{"rc", []string{"a", "b"}, 2, `unexpected argument "b"`},
		{"rc", []string{"-d", "nothing"}, 1, `open adapter "nothing"`},
		{"rc", []string{"-d", "soft-lo", "-i", "2"}, 1, "device soft-lo has no port 2, only port 1"},
		{"ud", []string{"-d", "soft-lo", "-s", "4097"}, 1, "a datagram holds at most the port's MTU, 4096 bytes, -s asks for 4097"},
		{"uc", []string{"-d", "soft-lo", "-p", port, "localhost"}, 1, "connection refused"},
	} {
		p := startPingPong(t, c.service, c.args...)
		assert.Equal(t, c.code, p.code(), c.args)
		assert.Empty(t, p.stdout.String(), c.args)
		said := p.stderr.String()
		assert.Contains(t, said, c.want)
		assert.Equal(t, 1, strings.Count(said, "\n")-strings.Count(said, ": connecting to "), "lines: %s", said)
	}
}

// A peer that sends nonsense, or nothing, ends the program.
func TestPingPongHandshake(t *testing.T) {
	const address = "0000:000012:000034:00000000000000000000ffff7f000001"
	for said, want := range map[string]string{
		"":                            "got 0",
		"0000:000012":                 "got 11",
		address + "x":                 "want LID:QPN:PSN:GID",
		"zzzz" + address[4:] + "\x00": "want LID:QPN:PSN:GID",
		strings.Replace(address, "ffff7f000001", "000000000000", 1) + "\x00": "the peer sent no GID: start it with -g",
	} {
		port := freePort(t)
		server := startServer(t, "rc", "-d", "soft-lo", "-p", port)
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		require.NoError(t, err)
		_, err = conn.Write([]byte(said))
		require.NoError(t, err)
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
		assert.Equal(t, 1, server.code())
		assert.Contains(t, server.stderr.String(), want)
		require.NoError(t, conn.Close())
	}
}

// Programs with different parameters both end, and report why.
func TestPingPongMismatch(t *testing.T) {
	for _, c := range []struct{ server, client []string }{
		{[]string{"rc"}, []string{"uc"}},
		{[]string{"ud", "-s", "1024"}, []string{"rc", "-s", "1024"}},
		{[]string{"uc"}, []string{"uc", "-n", "7"}},
		{[]string{"rc"}, []string{"rc", "-n", "1"}}, // the client is done before it knows
	} {
		args := []string{"-d", "soft-lo", "-p", freePort(t), "-n", "100000"}
		server := startServer(t, c.server[0], append(args, c.server[1:]...)...)
		client := startPingPong(t, c.client[0], append(append(args, c.client[1:]...), "localhost")...)
		assert.Equal(t, 1, client.code(), client.said())
		assert.Equal(t, 1, server.code(), server.said())
		assert.Contains(t, client.said()+server.said(), "start the same program with the same -n")
	}
}
