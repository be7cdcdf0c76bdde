package ping

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/device/route"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output can be written and read at the same time.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

var listeningLine = regexp.MustCompile(`listening +\S*:(\d+): interrupt`)

// startServer runs "ping -s", and returns its port.
func startServer(t *testing.T, args ...string) (port string, out *output) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out = new(output)
	done := make(chan int)
	go func() {
		done <- Main(ctx, append([]string{"-s", "-d", "soft-lo", "-p", freePort(t)}, args...), out, out)
	}()
	t.Cleanup(func() {
		cancel()
		assert.Equal(t, exit.OK, <-done, "%s", out)
	})
	require.Eventually(t, func() bool { return listeningLine.MatchString(out.String()) }, 5*time.Minute, time.Millisecond)
	return listeningLine.FindStringSubmatch(out.String())[1], out
}

// freePort is a port that nobody listens on.
func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}

func run(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	var o output
	code = Main(t.Context(), args, &o, &o)
	return code, o.String()
}

func TestPing(t *testing.T) {
	port, server := startServer(t)
	for _, host := range []string{"localhost", "127.0.0.1"} {
		code, out := run(t, "-p", port, "-c", "4", "-i", "0", host)
		require.Equal(t, exit.OK, code, "%s", out)
		for _, part := range []string{
			"device    soft-lo: software device", "port      1: active", "GID       * 0", "connected ", "verbena ping -s",
			"round     1: 64 bytes", "round     2: 8192 bytes", "round     4: 64 bytes", "RDMA works: 3 rounds",
		} {
			assert.Contains(t, out, part)
		}
	}
	code, out := run(t, "-c", "1", "-size", "65535", "127.0.0.1:"+port)
	require.Equal(t, exit.OK, code, "%s", out)
	assert.Contains(t, out, "65535 bytes")
	require.Eventually(t, func() bool { return strings.Count(server.String(), "disconnected") == 3 }, 5*time.Minute, time.Millisecond)
}

func TestInterrupted(t *testing.T) {
	port, _ := startServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	var out output
	done := make(chan int)
	go func() { done <- Main(ctx, []string{"-c", "0", "-i", "1ms", "127.0.0.1:" + port}, &out, &out) }()
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "round     3") }, 5*time.Minute, time.Millisecond)
	cancel()
	require.Equal(t, exit.OK, <-done, "%s", &out)
	assert.Contains(t, out.String(), "RDMA works")
}

func TestExplain(t *testing.T) {
	_, _ = startServer(t) // its device takes an address: somebody answers on 127.0.0.1, or a later one
	dev, err := device.Open("soft-lo")
	require.NoError(t, err)
	gids, err := dev.GIDs(1)
	require.NoError(t, err)
	answers := gids[0].GID.Addr().String()
	defer func() { require.NoError(t, dev.Close()) }()
	engine := pe.New(pe.Config{})
	s, err := NewServer(dev, engine, zerolog.Nop())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- engine.Run(ctx) }()
	defer func() {
		cancel()
		require.ErrorIs(t, <-served, context.Canceled)
		require.NoError(t, s.Close())
		require.NoError(t, engine.Close())
	}()
	_, _, err = s.Listen(t.Context(), ":0")
	require.NoError(t, err)

	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"nobody listens", []string{answers + ":1"}, []string{"FAILED    connect", "listens on port 1 of a software device", "verbena ping -s"}},
		{"no device", []string{"127.255.0.9"}, []string{"FAILED    connect", "No program on this machine listens"}},
		{"no such name", []string{"no such host"}, []string{"look up no such host", "check the name"}},
		{"no such device", []string{"-d", "soft-nothing0", "127.0.0.1"}, []string{"nothing0"}},
		{"no such GID", []string{"-d", "soft-lo", "-g", "77", "127.0.0.1"}, []string{"none of the"}},
		{"another network", []string{"-d", "soft-lo", "192.0.2.1"}, []string{"none of the", "choose another device"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out := run(t, append([]string{"-t", "30s"}, c.args...)...)
			require.Equal(t, exit.Failed, code, "%s", out)
			for _, part := range c.want {
				assert.Contains(t, out, part)
			}
		})
	}
}

func TestWrongUsage(t *testing.T) {
	for _, args := range [][]string{
		{}, {"a", "b"}, {"-p", "0", "a"}, {"-p", "65536", "a"}, {"-size", "25", "a"}, {"-size", "65536", "a"},
		{"-c", "-1", "a"}, {"-t", "0", "a"}, {"-nothing", "a"}, {"-i", "-1s", "a"},
	} {
		code, out := run(t, args...)
		require.Equal(t, exit.Usage, code, "%q: %s", args, out)
		require.Contains(t, out, "verbena ping:")
	}
	code, out := run(t, "-help")
	require.Equal(t, exit.OK, code)
	require.Contains(t, out, "usage: verbena ping")
}

// Listen returns when the engine of the part ends meanwhile, or has ended.
func TestListenOnEndedPart(t *testing.T) {
	p, err := newPart(&options{}, &route.Route{Device: "soft-lo"}, &printer{w: io.Discard}, zerolog.Nop())
	require.NoError(t, err)
	time.AfterFunc(time.Millisecond, p.stop)
	for err == nil {
		var stop func()
		if _, stop, err = p.Listen(netip.MustParseAddrPort("127.0.0.1:0")); err == nil {
			stop()
		}
	}
	<-p.Done()
	_, _, err = p.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	require.ErrorIs(t, err, errStopped)
	require.NoError(t, p.Close())
}

// A client that does not keep to the protocol loses its connection, and others go on.
func TestHostileClients(t *testing.T) {
	port, server := startServer(t)
	lie := func(length uint32) []byte {
		b := make([]byte, messageLen)
		(&memory{addr: 0x1000, rkey: 7, length: length}).put(b)
		return b
	}
	for _, messages := range [][][]byte{
		{[]byte("short")},
		{lie(0)},
		{lie(largest + 1)},
		{lie(64)}, // no such memory
		{lie(64), lie(64), lie(64), lie(64)},
		{make([]byte, 17)},
	} {
		dev, err := device.Open("soft-lo")
		require.NoError(t, err)
		engine := pe.New(pe.Config{})
		r, err := rdma.New(dev, rdma.Config{Engine: engine, EndWithLastConnection: true})
		require.NoError(t, err)
		tasks, err := r.Pool(64, pe.TaskDone[*rdma.Task], pe.TaskFailed[*rdma.Task])
		require.NoError(t, err)
		m, err := mmap.Register(dev, bytes.Join(messages, nil), mmap.LocalReadWrite)
		require.NoError(t, err)
		r.OnStateChange(func(_, next pe.State) {
			if next == pe.Starting {
				_, err := r.Dial("localhost:"+port, rdma.DialConfig{})
				r.Fail(err)
			}
		})
		r.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, _ error) {
			if state != rdma.Ready {
				return
			}
			off := 0
			for _, b := range messages {
				task, err := tasks.Send(conn, bufinv.Source(m, off, len(b)))
				_ = pe.SubmitOrFree(task, err, func(t *rdma.Task, _ error) { _ = t.Free() })
				off += len(b)
			}
		})
		require.NoError(t, r.Start())
		_ = engine.Run(t.Context()) // the server has ended the connection
		require.NoError(t, r.Close())
		require.NoError(t, m.Close())
		require.NoError(t, engine.Close())
		require.NoError(t, dev.Close())
	}
	code, out := run(t, "-c", "1", "127.0.0.1:"+port)
	require.Equal(t, exit.OK, code, "%s\n%s", out, server)
}

func FuzzParse(f *testing.F) {
	b := make([]byte, messageLen)
	(&memory{1, 2, 3}).put(b)
	f.Add(b)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err != nil {
			require.ErrorIs(t, err, errMessage)
			return
		}
		again := make([]byte, messageLen)
		m.put(again)
		require.Equal(t, b, again)
	})
}

func TestSplit(t *testing.T) {
	for target, want := range map[string]netip.AddrPort{
		"192.0.2.1":          netip.MustParseAddrPort("192.0.2.1:7174"),
		"192.0.2.1:7":        netip.MustParseAddrPort("192.0.2.1:7"),
		"2001:db8::1":        netip.MustParseAddrPort("[2001:db8::1]:7174"),
		"[2001:db8::1]":      netip.MustParseAddrPort("[2001:db8::1]:7174"),
		"[2001:db8::1]:7":    netip.MustParseAddrPort("[2001:db8::1]:7"),
		"[::ffff:192.0.2.1]": netip.MustParseAddrPort("[::ffff:192.0.2.1]:7174"),
	} {
		host, port, err := (&options{target: target, port: DefaultPort}).split()
		require.NoError(t, err)
		require.Equal(t, want, netip.AddrPortFrom(netip.MustParseAddr(host), uint16(port)), "%s", target)
	}
	_, _, err := (&options{target: "a:x"}).split()
	require.Error(t, err)
}
