package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/bench/internal/measure"
	"github.com/verbena-rdma/verbena/internal/process"
	"github.com/verbena-rdma/verbena/test/netns"
)

// TestMain makes this test binary what its name says, or bench stream, or one of programs.
func TestMain(m *testing.M) {
	what, args := filepath.Base(os.Args[0]), os.Args[1:]
	program := fakes[what]
	if program == nil && len(args) > 0 {
		if program = fakes[args[0]]; program != nil {
			args = args[1:]
		}
	}
	if program == nil {
		goleak.VerifyTestMain(m)
		return
	}
	if err := program(args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// patience ends a test that hangs.
const patience = 5 * time.Minute

// fakes do what the programs of others would.
var fakes = map[string]func(args []string) error{
	"ucx_info": func([]string) error { fmt.Println("# Version 1.13.1"); return nil },
	"fi_info":  func([]string) error { fmt.Println("fi_info: 1.17.0"); return nil },
	"ucx_perftest": func(args []string) error {
		if slices.Contains(args, "-v") {
			fmt.Printf("iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n%s,0.5,0.7,0.6,900,1000,2000000,3000000\n", valueOf(args, "-n"))
			return meet(valueOf(args, "-p"))
		}
		return serve(valueOf(args, "-p"))
	},
	"fi_pingpong": func(args []string) error {
		switch {
		case valueOf(args, "-S") == "8":
			return errors.New("no such provider")
		case slices.Contains(args, "-P"):
			fmt.Println("what is this?")
			return meet(valueOf(args, "-P"))
		}
		return serve(valueOf(args, "-B"))
	},
	"stream": func(args []string) error { return RunStream(context.Background(), args) },
	"serve":  func(args []string) error { return serve(args[0]) },
	"meet":   func(args []string) error { fmt.Println("hello from", os.Getenv("FROM")); return meet(args[0]) },
	"stay":   func([]string) error { time.Sleep(time.Hour); return nil },
	"fail":   func([]string) error { return errors.New("something is wrong") },
	"talk": func([]string) error {
		for range 3 * process.MaxOutput >> 16 {
			fmt.Println(strings.Repeat("x", 1<<16))
		}
		return nil
	},
}

func valueOf(args []string, flag string) string { return args[slices.Index(args, flag)+1] }

// serve serves one client.
func serve(port string) error {
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	c, err := l.Accept()
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, c)
	return err
}

func meet(port string) error {
	c, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	return c.Close()
}

func fake(args ...string) process.Program {
	return process.Program{Args: append([]string{os.Args[0]}, args...), Env: []string{"FROM=a test"}}
}

func TestPair(t *testing.T) {
	needLinux(t)
	for _, test := range []struct {
		name           string
		server, client func(port string) process.Program
		says           []string
	}{
		{"both succeed", func(p string) process.Program { return fake("serve", p) }, func(p string) process.Program { return fake("meet", p) }, nil},
		{"no program", func(string) process.Program { return process.Program{Args: []string{"/no/such/program"}} }, func(p string) process.Program { return fake("meet", p) },
			[]string{"start /no/such/program"}},
		{"the server fails", func(string) process.Program { return fake("fail") }, func(p string) process.Program { return fake("meet", p) },
			[]string{"does not listen", "it ended", "something is wrong"}},
		{"the client fails", func(p string) process.Program { return fake("serve", p) }, func(string) process.Program { return fake("fail") },
			[]string{"the client", "exit status 1", "something is wrong"}},
		{"no client program", func(p string) process.Program { return fake("serve", p) }, func(string) process.Program { return process.Program{Args: []string{"/no/such/program"}} },
			[]string{"start /no/such/program"}},
		{"too much", func(p string) process.Program { return fake("serve", p) }, func(string) process.Program { return fake("talk") }, []string{"printed more than"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			port, err := FreePort()
			require.NoError(t, err)
			o, err := Pair(t.Context(), test.server(number(port)), test.client(number(port)), port, patience, false)
			if test.says == nil {
				require.NoError(t, err)
				assert.Equal(t, "hello from a test\n", o.Output)
				assert.Positive(t, o.Elapsed)
				return
			}
			require.Error(t, err)
			for _, text := range test.says {
				assert.ErrorContains(t, err, text)
			}
		})
	}
	_, err := Pair(t.Context(), fake("stay"), fake("stay"), 1, time.Millisecond, false)
	require.ErrorIs(t, err, process.ErrLimit)
}

func TestListens(t *testing.T) {
	table := []byte("  sl  local_address rem_address   st tx_queue\n" +
		"   0: 0100007F:3720 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 354466 1\n" +
		"   1: 0100007F:3721 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 354467 1\n")
	assert.True(t, listens(table, 0x3720))
	assert.False(t, listens(table, 0x3721), "it is connected, and does not listen")
	assert.False(t, listens(table, 0x720))
	assert.False(t, listens(nil, 1))
}

func needLinux(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/self/net/tcp"); err != nil {
		t.Skip("needs Linux")
	}
}

// built is the program verbena.
func built(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "verbena")
	require.NoError(t, build(t.Context(), path))
	return path
}

// measured runs scenes, and returns the values by scene, row and contender.
func measured(t *testing.T, o *options) (r *measure.Result, values map[string]map[string][]float64) {
	t.Helper()
	o.time, o.limit, o.log, o.mib = 10*time.Millisecond, patience, t.Output(), 1
	r, err := compare(t.Context(), o)
	require.NoError(t, err)
	var b strings.Builder
	require.NoError(t, r.WriteJSON(&b))
	var all struct {
		Scenes []struct {
			Rows []struct {
				Title  string
				Values map[string][]float64
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(b.String()), &all))
	values = map[string]map[string][]float64{}
	for _, s := range all.Scenes {
		for _, row := range s.Rows {
			values[row.Title] = row.Values
		}
	}
	return r, values
}

// Verbena beside programs that play the others: some measure, some fail, some are not there. Two
// rounds, since another program may take a port before it is used.
func TestPeers(t *testing.T) {
	needLinux(t)
	folder := t.TempDir()
	for _, name := range []string{"ucx_info", "fi_info", "ucx_perftest", "fi_pingpong"} {
		require.NoError(t, os.Symlink(os.Args[0], filepath.Join(folder, name)))
	}
	o := &options{verbena: built(t), rounds: 2, busy: 1, scenes: []string{"local", "adapter", "streams"}}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	r, values := measured(t, o)
	assert.Equal(t, o.rounds, r.Rounds)
	assert.Contains(t, r.About[1], "UCX 1.13.1")
	data := values["8 B one way, polling, median"]
	assert.Equal(t, 0.5, most(data[ucxTCP]))
	assert.Positive(t, most(data[byUDP]))
	assert.Equal(t, 0.6, most(values["8 B one way, polling, mean"][ucxTCP]))
	for _, way := range []string{"rsocket, shared memory", "rsocket, UDP", "TCP"} {
		for _, row := range streamRows {
			assert.Positive(t, most(values[row][way]), "%s by %s", row, way)
		}
	}
	var text strings.Builder
	require.NoError(t, r.Write(&text, false))
	assert.Contains(t, text.String(), fmt.Sprintf("8 B one way, polling by libfabric tcp, %d times: round 1: the server does not listen", o.rounds))
	assert.Contains(t, text.String(), "Busy loops beside both ends: 1.")
	assert.Contains(t, text.String(), "no such provider")
	assert.Contains(t, text.String(), "what is this?")
}

// most is the largest value; 0: no round has one.
func most(values []float64) float64 { return slices.Max(append([]float64{0}, values...)) }

// Streams between two hosts.
func TestStreams1500(t *testing.T) {
	needLinux(t)
	r, values := measured(t, &options{verbena: "true", rounds: 1, scenes: []string{"streams1500"}})
	if why := r.Scenes[0].Skipped; why != "" {
		netns.Need(t, errors.New(why), "the test needs to create network namespaces, as root")
	}
	for _, way := range []string{"rsocket, UDP", "TCP"} {
		for _, row := range streamRows {
			assert.Positive(t, most(values[row][way]), "%s by %s", row, way)
		}
	}
}

// streamRows are rows of the tables of streams, one of each kind.
var streamRows = []string{
	"4 KiB there and back, median", "1 MiB at a time", "connect, 1 B there and back, close, mean",
	"HTTP 4 KiB, 16 at the same time", "HTTP 1 MiB, 16 at the same time, 99th percentile",
}

// perftest under verbena run, beside verbena perf. Short: not at all, since it builds the library.
func TestLibrary(t *testing.T) {
	needLinux(t)
	if testing.Short() {
		t.Skip("skipped: -short")
	}
	m := &measurer{options: &options{time: 20 * time.Millisecond, limit: patience, log: t.Output(), verbena: built(t)}}
	if m.find(t.Context()); m.perftest == "" {
		netns.Need(t, exec.ErrNotFound, "the test needs the Debian package perftest")
	}
	_, err := process.Run(t.Context(), process.Program{Args: []string{filepath.Join("..", "..", "..", "scripts", "library.sh"), filepath.Dir(m.verbena)}})
	netns.Need(t, err, "the test needs the library libverbena.so (Debian packages libibverbs-dev and librdmacm-dev, and a C compiler)")
	s, err := m.scene(t.Context(), "library")
	require.NoError(t, err)
	require.Empty(t, s.Skipped)
	require.Len(t, s.Contenders, 4)
	for _, c := range s.Contenders {
		at := slices.IndexFunc(c.Measurements, func(m measure.Measurement) bool { return m.Name == "64 KiB writes" })
		require.GreaterOrEqual(t, at, 0)
		values, err := c.Measurements[at].Do(t.Context())
		if assert.NoError(t, err, c.Name) {
			assert.Positive(t, values[0].Of, c.Name)
		}
	}
}

// A file arrives by verbena send and by scp.
func TestFiles(t *testing.T) {
	needLinux(t)
	for _, name := range []string{"/usr/sbin/sshd", "scp"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip("skipped: the test needs OpenSSH (scripts/setup.sh scp)")
		}
	}
	_, values := measured(t, &options{verbena: built(t), rounds: 1, scenes: []string{"files"}})
	for _, name := range []string{"verbena send", "scp"} {
		assert.Positive(t, values["a file"][name][0])
	}
}

// The programs of others take the arguments, and print what is expected. Short: not all figures.
func TestRealPrograms(t *testing.T) {
	needLinux(t)
	m := &measurer{options: &options{time: 20 * time.Millisecond, limit: patience, log: io.Discard, verbena: "true"}}
	m.find(t.Context())
	for _, p := range []struct {
		path   string
		tools  []tool
		debian string
	}{
		{m.ucx, []tool{ucx{path: m.ucx, transports: "posix,cma"}, ucx{path: m.ucx, transports: "tcp"}}, "ucx-utils"},
		{m.pingPong, []tool{pingPong{path: m.pingPong}}, "libfabric-bin"},
	} {
		t.Run(fmt.Sprintf("%T", p.tools[0]), func(t *testing.T) {
			if p.path == "" {
				netns.Need(t, exec.ErrNotFound, "the test needs the Debian package "+p.debian)
			}
			for _, one := range p.tools {
				for _, f := range figures() {
					if !one.measures(f) || testing.Short() && f.size > 64<<10 {
						continue
					}
					// On a busy machine, programs that poll wait for each other's time slices. A
					// batch alone takes UCX no time that it can measure.
					count := batch
					if f.kind == rate {
						count = one.firstCount(f)
					}
					s, err := m.run(t.Context(), one, f, here, count)
					if assert.NoError(t, err, "%v", f) {
						assert.Positive(t, s.mean)
					}
				}
			}
		})
	}
}

// Busy loops compute until they are stopped.
func TestBusy(t *testing.T) {
	needLinux(t)
	stop, err := startBusy(t.Context(), 2)
	require.NoError(t, err)
	time.Sleep(100 * time.Millisecond)
	assert.Positive(t, stop())
}

// An interrupt ends it, and what it has started.
func TestInterrupted(t *testing.T) {
	needLinux(t)
	ctx, cancel := context.WithCancel(t.Context())
	o := &options{verbena: built(t), rounds: 1, scenes: []string{"local"}, time: time.Hour, limit: 2 * time.Hour, log: writerFunc(func(text string) {
		if strings.Contains(text, "write_lat") {
			cancel()
		}
	})}
	r, err := compare(ctx, o)
	require.ErrorIs(t, err, context.Canceled)
	assert.Zero(t, r.Rounds)
}

type writerFunc func(string)

func (w writerFunc) Write(b []byte) (int, error) { w(string(b)); return len(b), nil }

func TestUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"no arguments":    {"somewhere"},
		"-rounds must be": {"-rounds", "0"},
		"-busy not":       {"-busy", "-1"},
		"less than":       {"-t", "20s", "-timeout", "10s"},
		`no scene "moon"`: {"-scene", "local,moon"},
	} {
		assert.ErrorContains(t, Run(t.Context(), args), want)
	}
}
