package perf

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/report"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is for what has to happen, on a machine that stands still now and then.
const patience = 5 * time.Minute

// output is written to by a goroutine while the test reads.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// startServer starts a server until the end of the test, and returns its address.
func startServer(t *testing.T, flags ...string) (addr string, out *output) {
	t.Helper()
	out = &output{}
	ctx, cancel := context.WithCancel(context.Background())
	var code int
	done := make(chan struct{})
	go func() {
		defer close(done)
		code = Main(ctx, append([]string{"-p", "0", "-bind", "127.0.0.1", "-d", "soft-lo", "-timeout", "5m"}, flags...), out, out)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		assert.Zero(t, code, "%s", out)
	})
	return listeningAt(t, out, done), out
}

// listeningAt waits until a server says where it listens, or ends.
func listeningAt(t *testing.T, out *output, done chan struct{}) string {
	t.Helper()
	for {
		_, rest, _ := strings.Cut(out.String(), "listening ")
		if addr, _, ok := strings.Cut(rest, ": "); ok {
			return addr
		}
		select {
		case <-done:
			require.Fail(t, "the server has ended", "%s", out)
		case <-time.After(time.Millisecond):
		}
	}
}

// run runs a client with few, short operations.
func run(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	var b bytes.Buffer
	code = Main(t.Context(), append([]string{"-timeout", "5m", "-wait", "5m", "-warm-up", "1ms"}, args...), &b, &b)
	return code, b.String()
}

// Everything that a plan can say works.
func TestVariants(t *testing.T) {
	addr, log := startServer(t)
	for _, flags := range []string{
		"-test all -n 50 -verify -t 8",
		"-test all -n 20 -s 1,9000 -b -q 3 -engines 2 -verify -t 8 -rounds 2",
		"-test write_bw,send_bw -n 60 -l 4 -Q 3 -t 16 -I 100 -m 1024 -s 64",
		"-test send_bw,read_bw,send_lat,write_imm_lat -n 20 -e -verify",
		"-test write_lat -D 20ms -s 5000 -verify",
		"-test read_bw -D 20ms -warm-up 0 -q 2,5 -t 4 -u 14 -counters -report_gbits",
		"-test write_bw -n 1 -warm-up 0 -t 64 -l 64 -Q 64 -verify",
		"-test send_bw -a -n 3 -t 2 -warm-up 0",
		"-test batch -n 3 -s 1,9000,300000 -l 10 -q 1,3 -t 4 -rounds 2 -verify",
		"-test read_batch,write_lat -D 20ms -counters -report_gbits",
	} {
		t.Run(flags, func(t *testing.T) {
			code, out := run(t, append(strings.Fields(flags), addr)...)
			require.Equal(t, exit.OK, code, "%s\n%s", out, log)
			assert.Contains(t, out, "#bytes")
			assert.NotContains(t, out, "DAMAGED")
			if strings.Contains(flags, "verify") {
				assert.Contains(t, out, "verified: ")
			}
		})
	}
}

// The report has what was measured, of as many operations as were asked for.
func TestFiles(t *testing.T) {
	addr, log := startServer(t)
	folder := t.TempDir()
	file, table := filepath.Join(folder, "a.json"), filepath.Join(folder, "a.csv")
	code, out := run(t, "-test", "write_bw,read_lat", "-s", "8,4096", "-n", "40", "-rounds", "3", "-warm-up", "0", "-json", file, "-csv", table, addr)
	require.Equal(t, exit.OK, code, "%s\n%s", out, log)
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	reports := json.NewDecoder(bytes.NewReader(b))
	for range 2 {
		var r report.Report
		require.NoError(t, reports.Decode(&r))
		require.Len(t, r.Results, 6)
		for i, res := range r.Results {
			round, size := r.Plan.Step(i)
			assert.Equal(t, [2]int{round, size}, [2]int{res.Round, res.Size})
			assert.EqualValues(t, 40, res.Operations)
			assert.Positive(t, res.Bandwidth)
			assert.Positive(t, res.Client.CPU)
			if r.Plan.Test.Kind == plan.Latency {
				var n int64
				for _, b := range res.Latency.Bars {
					n += b.Count
				}
				assert.EqualValues(t, 40, n)
			}
		}
		assert.Equal(t, "soft-lo", r.Server.Device)
		assert.Equal(t, r.Client.Machine.ID, r.Server.Machine.ID)
		assert.NotEmpty(t, r.Client.GID)
		assert.Positive(t, r.Path.MTU)
	}
	assert.False(t, reports.More())
	b, err = os.ReadFile(table)
	require.NoError(t, err)
	assert.Equal(t, 13, bytes.Count(b, []byte("\n")))

	code, out = run(t, "-test", "write_batch", "-s", "8,4096", "-n", "5", "-l", "7", "-q", "2", "-warm-up", "0", "-json", file, "-csv", table, addr)
	require.Equal(t, exit.OK, code, "%s\n%s", out, log)
	b, err = os.ReadFile(file)
	require.NoError(t, err)
	var r report.Report
	require.NoError(t, json.Unmarshal(b, &r))
	require.Len(t, r.Results, 2)
	for _, res := range r.Results {
		assert.EqualValues(t, 5*7, res.Operations)
		assert.Positive(t, res.Bandwidth)
		assert.Positive(t, res.Client.CPU)
		assert.Positive(t, res.Latency.Typical)
	}
	assert.Equal(t, r.Server.GID, strings.Split(r.Path.Peer, ":")[0])
	assert.Equal(t, r.Client.GID, strings.Split(r.Path.Local, ":")[0])
	assert.NotEmpty(t, r.Path.Way)
	b, err = os.ReadFile(table)
	require.NoError(t, err)
	assert.Equal(t, 3, bytes.Count(b, []byte("\n")))

	profile := filepath.Join(folder, "cpu")
	code, out = run(t, "-n", "10", "-cpuprofile", profile, addr)
	require.Equal(t, exit.OK, code, "%s", out)
	b, err = os.ReadFile(profile)
	require.NoError(t, err)
	assert.True(t, bytes.HasPrefix(b, []byte{0x1f, 0x8b}), "a profile is compressed by gzip: % x", b)
	code, out = run(t, "-n", "10", "-cpuprofile", filepath.Join(profile, "a"), addr)
	assert.Equal(t, exit.Failed, code)
	assert.Contains(t, out, "-cpuprofile: ")

	code, out = run(t, "-n", "10", "-json", "-", addr)
	require.Equal(t, exit.OK, code, "%s", log)
	var one report.Report
	assert.NoError(t, json.Unmarshal([]byte(out), &one), "%s", out)
}

// Batches use all devices that either end names; other tests use one.
func TestSeveralDevices(t *testing.T) {
	addr, log := startServer(t, "-d", "soft-lo,soft-lo")
	code, out := run(t, "-test", "batch", "-d", "soft-lo,soft-lo,soft-lo", "-n", "5", "-s", "300000", "-q", "2", "-l", "9", "-verify", "-counters", addr)
	require.Equal(t, exit.OK, code, "%s\n%s", out, log)
	assert.Contains(t, out, "client    soft-lo,soft-lo,soft-lo (")
	assert.Contains(t, out, "server    soft-lo,soft-lo (")
	assert.Equal(t, 2, strings.Count(out, "verified: 9 "))
	assert.Contains(t, out, "client sent_pkts")
	require.Eventually(t, func() bool { // the client before is being given up
		code, out = run(t, "-n", "10", addr)
		return !strings.Contains(out, "another client")
	}, patience, time.Millisecond)
	assert.Equal(t, exit.Failed, code, "%s", out)
	assert.Contains(t, out, "the server cannot run the test: -d is soft-lo,soft-lo; only batches use several devices")
	code, out = run(t, "-test", "batch", "-d", "soft-lo,soft-nothing0", addr)
	assert.Equal(t, exit.Failed, code, "%s", out)
	assert.Contains(t, out, `interface "nothing0"`)
}

// Both ends by connection manager.
func TestConnectionManager(t *testing.T) {
	addr, log := startServer(t, "-R")
	for _, flags := range []string{"-test all -n 20 -verify -t 8 -q 3 -engines 2", "-test batch -n 3 -verify -q 3", "-test send_bw -b -n 20 -q 300 -t 1 -s 8"} {
		code, out := run(t, append(strings.Fields(flags), "-R", "-d", "soft-lo", addr)...)
		require.Equal(t, exit.OK, code, "%s\n%s", out, log)
	}
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	code, out := run(t, "-wait", "0", "127.0.0.1:"+port) // TCP
	require.Equal(t, exit.Failed, code)
	assert.Contains(t, out, "is verbena perf running there")
}

func TestOnce(t *testing.T) {
	out := &output{}
	var ended int
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended = Main(t.Context(), []string{"-once", "-p", "0", "-bind", "127.0.0.1"}, out, out)
	}()
	code, text := run(t, "-n", "10", listeningAt(t, out, done))
	require.Equal(t, exit.OK, code, "%s", text)
	<-done
	require.Equal(t, exit.OK, ended, "%s", out)
}

func TestWrongUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"name one":                       {"a", "b"},
		"no test":                        {"-test", "walk", "a"},
		"-nothing":                       {"-nothing", "a"},
		"-s is":                          {"-s", "0", "a"},
		"-s is \"1,x\"":                  {"-s", "1,x", "a"},
		"-q is":                          {"-q", "0", "a"},
		"-a and -s":                      {"-a", "-s", "8", "a"},
		"-n and -D":                      {"-n", "5", "-D", "5", "a"},
		"exclude each other":             {"-n", "-5", "a"},
		"positive time":                  {"-D", "-5", "a"},
		"-p is 70000":                    {"-p", "70000", "a"},
		"-p is 0":                        {"-p", "0", "a"},
		"-x and -i":                      {"-x", "-7", "a"},
		"-timeout":                       {"-timeout", "0", "a"},
		"-wait is -1s":                   {"-wait", "-1s", "a"},
		"-max-memory":                    {"-max-memory", "0"},
		"-u is 32":                       {"-u", "32", "a"},
		"batch is 200":                   {"-l", "200", "a"},
		"path MTU is 1500":               {"-m", "1500", "a"},
		"each engine needs at least one": {"-engines", "2", "a"},
		"not on 2":                       {"-test", "write_lat", "-q", "2", "a"},
		"measure write_imm_lat":          {"-test", "write_lat", "-e", "a"},
		"bytes of memory":                {"-s", "1073741824", "-verify", "a"},
		"-e cannot be used with batches": {"-test", "batch", "-e", "a"},
		"-x and -i cannot":               {"-test", "read_batch", "-x", "1", "a"},
		"peers is 300":                   {"-test", "batch", "-q", "300", "a"},
		"batch is 70000":                 {"-test", "batch", "-l", "70000", "a"},
		"depth is 2000":                  {"-test", "batch", "-t", "2000", "a"},
		"limit is 2147483648; use":       {"-test", "batch", "-s", "8388608", "-verify", "a"},
		"only batches use several":       {"-d", "soft-lo,soft-lo", "a"},
		"no program for batches":         {"-test", "write_batch", "-perftest", "a"},
	} {
		code, out := run(t, args...)
		assert.Equal(t, exit.Usage, code, "%q: %s", args, out)
		assert.Contains(t, out, want)
		assert.Equal(t, 1, strings.Count(out, "\n"), "%s", out)
	}
	code, out := run(t, "-help")
	assert.Equal(t, exit.OK, code)
	assert.Contains(t, out, "usage: verbena perf")
}

func TestFlags(t *testing.T) {
	o, err := parseArgs([]string{"host:77", "-D", "1.5", "--tx-depth", "9", "-u", "14"}, io.Discard)
	require.NoError(t, err)
	require.Len(t, o.plans, 1)
	p := o.plans[0]
	assert.Equal(t, 1500*time.Millisecond, p.Duration)
	assert.Equal(t, 9, p.Depth)
	assert.Equal(t, 4096*time.Nanosecond<<14, p.AckTimeout)
	for target, want := range map[string][2]string{
		"host:77":        {"host", "77"},
		"host":           {"host", "18515"},
		"192.0.2.1":      {"192.0.2.1", "18515"},
		"2001:db8::1":    {"2001:db8::1", "18515"},
		"[2001:db8::1]":  {"2001:db8::1", "18515"},
		"[2001:db8::1]:": {"2001:db8::1", ""},
	} {
		host, port := (&options{target: target, port: defaultPort}).address()
		assert.Equal(t, want, [2]string{host, port}, target)
	}
	// A sweep of both is a test for each number of connections, and one latency.
	o, err = parseArgs([]string{"-test", "all", "-q", "1,2", "host"}, io.Discard)
	require.NoError(t, err)
	assert.Len(t, o.plans, 6*2+6)
	o, err = parseArgs([]string{"-test", "batch,write_bw", "-q", "1,2", "host"}, io.Discard)
	require.NoError(t, err)
	assert.Len(t, o.plans, 6)
}

func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	for want, args := range map[string][]string{
		"is verbena perf running there":    {addr},
		"look up no such host":             {"no such host"},
		"nothing0":                         {"-d", "soft-nothing0", addr},
		"is verbena perf -R running there": {"-R", "-d", "soft-lo", "127.0.0.1:9"},
	} {
		code, out := run(t, append([]string{"-wait", "0"}, args...)...)
		assert.Equal(t, exit.Failed, code, "%q: %s", args, out)
		assert.Contains(t, out, want)
	}
}

// With -wait, the client dials until the server is there; without, once.
func TestWait(t *testing.T) {
	for wait, want := range map[time.Duration]int{0: 1, patience: 3} {
		dials := 0
		_, err := reach(t.Context(), &options{wait: wait, target: "host:7"}, "verbena perf", func(context.Context) (int, error) {
			if dials++; dials < 3 {
				return 0, syscall.ECONNREFUSED
			}
			return 0, nil
		})
		assert.Equal(t, want, dials)
		if wait == 0 {
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			require.ErrorContains(t, err, `; is verbena perf running there? with "verbena ping -s" there, "verbena ping host" says why`)
			continue
		}
		require.NoError(t, err)
	}
}

// Data for which the device has no room in a work request cannot be sent inline.
func TestInlineLimit(t *testing.T) {
	addr, _ := startServer(t)
	code, out := run(t, "-n", "10", "-s", "512", "-I", "512", addr)
	require.Equal(t, exit.OK, code, "%s", out)
	assert.Contains(t, out, "512 bytes inline at most")
	code, out = run(t, "-n", "10", "-I", "1000", addr)
	require.Equal(t, exit.Failed, code, "%s", out)
	assert.Contains(t, out, "-I is 1000; soft-lo sends at most 512 bytes inline")
}

// A second client is turned away while the first is served, and served afterwards.
func TestBusy(t *testing.T) {
	addr, log := startServer(t)
	first, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "a client connected") }, patience, time.Millisecond)
	code, out := run(t, "-n", "10", addr)
	require.Equal(t, exit.Failed, code)
	assert.Contains(t, out, "another client is being served")
	require.NoError(t, first.Close())
	require.Eventually(t, func() bool {
		code, out = run(t, "-n", "10", addr)
		return code == exit.OK
	}, patience, time.Millisecond, "%s", out)
}

// A server of one client at several addresses refuses a second one at another address, and goes on with
// the first. It serves nobody after that.
func TestOnceBusy(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	type result struct {
		served bool
		err    error
	}
	var addrs []string
	var results []chan result
	busy := new(atomic.Bool)
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		s := &server{o: &options{once: true, timeout: patience}, log: zerolog.Nop(), busy: busy}
		ended := make(chan result, 1)
		go func() {
			served, err := s.accept(ctx, l, func(c net.Conn) netip.AddrPort { return c.RemoteAddr().(*net.TCPAddr).AddrPort() })
			ended <- result{served, err}
		}()
		addrs, results = append(addrs, l.Addr().String()), append(results, ended)
	}
	stream, err := net.Dial("tcp", addrs[0])
	require.NoError(t, err)
	first := control.NewConversation(ctx, stream)
	_, err = control.Await[*control.Ready](ctx, first)
	require.NoError(t, err)
	require.ErrorContains(t, say(t, addrs[1]), errBusy.Error())
	select {
	case r := <-results[0]:
		require.Fail(t, "the first client has lost its server", "%v", r)
	case r := <-results[1]:
		require.Fail(t, "the second client counts as served", "%v", r)
	default:
	}
	require.NoError(t, first.Close())
	r := <-results[0]
	require.True(t, r.served)
	require.ErrorIs(t, r.err, control.ErrPeerClosed)
	require.ErrorContains(t, say(t, addrs[1]), errBusy.Error())
	cancel()
	require.Equal(t, result{}, <-results[1])
}

// say sends messages, and returns the fault that the other end answers with, or the error with
// which it ends.
func say(t *testing.T, addr string, messages ...control.Message) error {
	stream, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	conv := control.NewConversation(t.Context(), stream.(*net.TCPConn))
	defer func() { _ = conv.Close() }()
	for _, m := range messages {
		if err := conv.Send(m); err != nil {
			return err
		}
	}
	for {
		if _, err := conv.Receive(t.Context()); err != nil {
			return err
		}
	}
}

// Clients that lie are told so, and others are served after them.
func TestHostileClients(t *testing.T) {
	addr, log := startServer(t, "-max-memory", "64")
	request := func(change func(*plan.Plan)) *control.Request {
		p := plan.Plan{Test: plan.Test{Op: plan.Write}, Sizes: []int{64}, Iterations: 10, Connections: 2, Depth: 4}
		p.Complete()
		change(&p)
		return &control.Request{Plan: p}
	}
	good := request(func(*plan.Plan) {})
	for name, c := range map[string]struct {
		messages []control.Message
		want     string
	}{
		"another message":        {[]control.Message{&control.Begin{}}, "received begin, want request"},
		"memory beyond bounds":   {[]control.Message{request(func(p *plan.Plan) { p.Sizes = []int{1 << 29} })}, "bytes of memory"},
		"size beyond bounds":     {[]control.Message{request(func(p *plan.Plan) { p.Sizes = []int{math.MaxInt} })}, "size"},
		"a negative size":        {[]control.Message{request(func(p *plan.Plan) { p.Sizes = []int{-8} })}, "size"},
		"connections":            {[]control.Message{request(func(p *plan.Plan) { p.Connections = 1 << 30 })}, "connections"},
		"no engines":             {[]control.Message{request(func(p *plan.Plan) { p.Engines = 0 })}, "engines"},
		"depth":                  {[]control.Message{request(func(p *plan.Plan) { p.Depth = -1 })}, "depth"},
		"a token without use":    {[]control.Message{&control.Request{Plan: good.Plan, Token: make([]byte, control.TokenLen)}}, "token"},
		"items":                  {[]control.Message{request(func(p *plan.Plan) { p.Test.Kind, p.Batch = plan.Batches, 1<<30 })}, "batch"},
		"CM without a token":     {[]control.Message{request(func(p *plan.Plan) { p.CM = true })}, "token"},
		"too few connections":    {[]control.Message{good, &control.End{Last: true}}, "do not match the plan"},
		"another engine":         {[]control.Message{good, &control.End{Engine: 1, Connections: [][]byte{{1}, {2}}, Last: true}}, "do not match the plan"},
		"a negative engine":      {[]control.Message{good, &control.End{Engine: -1}}, "do not match the plan"},
		"too many connections":   {[]control.Message{good, &control.End{Memory: []byte{1}, Connections: [][]byte{{1}, {2}, {3}}}}, "do not match the plan"},
		"memory that is no such": {[]control.Message{good, &control.End{Memory: []byte("x"), Connections: [][]byte{{1}, {2}}, Last: true}}, "import memory map"},
		"a fault":                {[]control.Message{good, &control.Fault{Reason: "away"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			require.Eventually(t, func() bool { // the client before is being given up
				err = say(t, addr, c.messages...)
				return err != nil && !strings.Contains(err.Error(), "another client")
			}, patience, time.Millisecond)
			assert.ErrorContains(t, err, c.want, "%s", log)
		})
	}
	require.Eventually(t, func() bool {
		code, _ := run(t, "-n", "10", addr)
		return code == exit.OK
	}, patience, time.Millisecond, "%s", log)
}

// Servers that lie or go away end the client, with one line that says so.
func TestHostileServers(t *testing.T) {
	const agent = "127.0.0.1:9"
	for name, c := range map[string]struct {
		answers []control.Message
		want    string
	}{
		"batch: no agent":      {[]control.Message{&control.Accept{}, &control.End{Last: true}}, "do not match the plan"},
		"batch: too few peers": {[]control.Message{&control.Accept{}, &control.End{Agent: agent, Last: true}}, "do not match the plan"},
		"batch: wrong order":   {[]control.Message{&control.Accept{}, &control.End{Engine: 1, Agent: agent}}, "do not match the plan"},
		"batch: nobody there":  {[]control.Message{&control.Accept{}, &control.End{Agent: agent}}, "dial the transfer agent at 127.0.0.1:9"},
		"batch: no address":    {[]control.Message{&control.Accept{}, &control.End{Agent: "\x00:"}}, "dial the transfer agent"},
		"gone at once":         {nil, "has closed the connection"},
		"gone after the plan":  {[]control.Message{&control.Accept{}}, "has closed the connection"},
		"another order":        {[]control.Message{&control.Connected{}}, "received connected, want accept"},
		"no connections":       {[]control.Message{&control.Accept{}, &control.End{Last: true}}, "do not match the plan"},
		"too many connections": {[]control.Message{&control.Accept{}, &control.End{Memory: []byte{1}, Connections: make([][]byte, 300), Last: true}}, "do not match the plan"},
		"no memory":            {[]control.Message{&control.Accept{}, &control.End{Connections: [][]byte{{1}}, Last: true}}, "do not match the plan"},
		"a fault":              {[]control.Message{&control.Fault{Reason: "not today"}}, "not today"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer func() { _ = l.Close() }()
			done := make(chan struct{})
			go func() {
				defer close(done)
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer func() { _ = conn.Close() }()
				say := func(m control.Message) {
					b, _ := control.Append(nil, m)
					_, _ = conn.Write(b)
				}
				say(&control.Ready{})
				if _, err := control.Read(conn); err != nil {
					return
				}
				for _, m := range c.answers {
					say(m)
				}
			}()
			args := []string{l.Addr().String()}
			if strings.HasPrefix(name, "batch") {
				args = append(args, "-test", "write_batch", "-q", "2")
			}
			code, out := run(t, args...)
			<-done
			assert.Equal(t, exit.Failed, code)
			assert.Contains(t, out, c.want)
			assert.Equal(t, 1, strings.Count(out, "\n"), "%s", out)
		})
	}
	// Something else than verbena perf.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, _ = io.WriteString(conn, "SSH-2.0-OpenSSH_9.2\r\n")
			_, _ = conn.Read(make([]byte, 4096))
			_ = conn.Close()
		}
	}()
	code, out := run(t, l.Addr().String())
	assert.Equal(t, exit.Failed, code)
	assert.Contains(t, out, `it begins with "SSH-"`)
}
