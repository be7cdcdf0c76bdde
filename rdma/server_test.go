//go:build unix

package rdma_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/process"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/test/soak"
	"github.com/verbena-rdma/verbena/verbs"
)

// Where things are in the memory of a program: an area for each connection, in it
// room for each exchange, and behind the areas the buffers of receives.
const (
	exchangesPerConnection = 2
	mostWritten            = 8 << 10
	mostSent               = 4 << 10
	readBackAt             = mostWritten
	messageAt              = 2 * mostWritten
	targetAt               = 3 * mostWritten // what the peer writes to
	exchangeSize           = 4 * mostWritten
	areaSize               = exchangesPerConnection * exchangeSize
)

// traffic is what a program needs to exchange data with others, server or client:
// pools, memory, and what happens to its exchanges.
type traffic struct {
	ctx  *rdma.Connections
	mem  *mmap.Map
	bufs *bufinv.Inventory

	writes   *rdma.Pool
	reads    *rdma.Pool
	sends    *rdma.Pool
	receives *rdma.ReceivePool
	want     []byte // what a message should be: no garbage, since the server's heap is measured

	wrong func(err error)              // data is wrong, or the library misbehaves
	ended func(s *exchange, err error) // a task of an exchange has failed
	moved func(conn *rdma.Connection)  // an exchange has completed once
}

// newTraffic makes a context on the device for a number of connections, with default
// settings.
func newTraffic(dev verbs.Device, engine *pe.Engine, connections int, cfg rdma.Config) (*traffic, error) {
	tr := &traffic{want: make([]byte, mostSent)}
	cfg.Engine, cfg.MaxConnections, cfg.Permissions = engine, connections, everything
	receives := 8 * connections
	var err error
	if tr.ctx, err = rdma.New(dev, cfg); err != nil {
		return nil, err
	}
	if tr.mem, err = mmap.Alloc(dev, connections*areaSize+receives*mostSent, everything); err != nil {
		return nil, err
	}
	if tr.bufs, err = bufinv.New(2*exchangesPerConnection*connections + receives); err != nil {
		return nil, err
	}
	if tr.writes, err = tr.ctx.Pool(exchangesPerConnection*connections, tr.wrote, func(t *rdma.Task, err error) { tr.failed(t, err) }); err != nil {
		return nil, err
	}
	if tr.reads, err = tr.ctx.Pool(exchangesPerConnection*connections, tr.readBack, func(t *rdma.Task, err error) { tr.failed(t, err) }); err != nil {
		return nil, err
	}
	if tr.sends, err = tr.ctx.Pool(exchangesPerConnection*connections, tr.sent, func(t *rdma.Task, err error) { tr.failed(t, err) }); err != nil {
		return nil, err
	}
	tr.receives, err = tr.ctx.ReceivePool(receives, tr.received, func(t *rdma.ReceiveTask, err error) {
		if !errors.Is(err, rdma.ErrFlushed) {
			tr.wrong(err)
		}
		tr.check(t.Free())
	})
	return tr, err
}

func (tr *traffic) check(err error) {
	if err != nil {
		tr.wrong(err)
	}
}

// post submits all receives. It is called once the context is Running.
func (tr *traffic) post() {
	n := tr.receives.Available()
	for i := range n {
		task, err := tr.receives.Alloc(tr.bufs.Target(tr.mem, tr.mem.Len()-(i+1)*mostSent, mostSent))
		tr.check(err)
		tr.check(task.Submit())
	}
}

// received checks a message: the first byte counts the messages of a connection.
func (tr *traffic) received(task *rdma.ReceiveTask) {
	got := task.Destination().Bytes()
	link := task.Connection().UserData().(*link)
	want := tr.want[:len(got)]
	fill(want, byte(link.received))
	link.received++
	if !bytes.Equal(want, got) {
		tr.wrong(fmt.Errorf("message %d of %v is wrong", link.received-1, task.Connection()))
	}
	if tr.ctx.State() != pe.Running {
		tr.check(task.Free())
		return
	}
	tr.check(task.Submit())
}

// link is what two programs know of their connection.
type link struct {
	conn           *rdma.Connection
	peer           *mmap.Map
	area, peerArea int // offsets
	sent, received int // messages
	client         *client
}

// start begins the exchanges of a connection that is Ready.
func (tr *traffic) start(l *link) {
	for i := range exchangesPerConnection {
		s := &exchange{tr: tr, link: l, local: l.area + i*exchangeSize, remote: l.peerArea + i*exchangeSize + targetAt}
		s.write()
	}
}

// exchange keeps one task at a time under way on a connection: it writes to memory of
// the peer, reads it back and compares, and sends a message.
type exchange struct {
	tr            *traffic
	link          *link
	local, remote int
	n, length     int
}

type freeable interface {
	UserData() any
	Free() error
}

func (tr *traffic) failed(task freeable, err error) {
	s := task.UserData().(*exchange)
	tr.check(task.Free())
	tr.ended(s, err)
}

func (s *exchange) submit(task interface {
	freeable
	SetUserData(any)
	Submit(...pe.SubmitFlags) error
}, err error) {
	if err != nil {
		s.tr.ended(s, err)
		return
	}
	task.SetUserData(s)
	if err := task.Submit(); err != nil {
		s.tr.failed(task, err)
	}
}

func (s *exchange) write() {
	tr := s.tr
	s.n++
	s.length = 1 + rand.IntN(mostWritten)
	fill(tr.mem.Bytes()[s.local:][:s.length], byte(s.n))
	s.submit(tr.writes.Write(s.link.conn, tr.bufs.Source(tr.mem, s.local, s.length), tr.bufs.Target(s.link.peer, s.remote, s.length)))
}

func (tr *traffic) wrote(task *rdma.Task) {
	s := task.UserData().(*exchange)
	tr.check(task.Free())
	s.submit(tr.reads.Read(s.link.conn, tr.bufs.Source(s.link.peer, s.remote, s.length), tr.bufs.Target(tr.mem, s.local+readBackAt, s.length)))
}

func (tr *traffic) readBack(task *rdma.Task) {
	s := task.UserData().(*exchange)
	if !bytes.Equal(task.Destination().Bytes(), tr.mem.Bytes()[s.local:][:s.length]) {
		tr.wrong(fmt.Errorf("%v: what was read differs from what was written", s.link.conn))
	}
	tr.check(task.Free())
	n := 1 + rand.IntN(mostSent)
	fill(tr.mem.Bytes()[s.local+messageAt:][:n], byte(s.link.sent))
	s.link.sent++
	s.submit(tr.sends.Send(s.link.conn, tr.bufs.Source(tr.mem, s.local+messageAt, n)))
}

func (tr *traffic) sent(task *rdma.Task) {
	s := task.UserData().(*exchange)
	tr.check(task.Free())
	tr.moved(s.link.conn)
	s.write()
}

// What clients do.
const (
	clientWorks   = "works"
	stopsAtOnce   = "stops before it connects"
	stopsHalfWay  = "stops half-way"
	neverConnects = "never connects"
)

// clientDevices are the devices that clients run on.
var clientDevices = map[string]func(*testing.T) verbs.Device{"soft": openSoft}

// TestClientProcess is the program that the tests of servers start and kill.
func TestClientProcess(t *testing.T) {
	what := os.Getenv("VERBENA_CLIENT")
	if what == "" {
		t.Skip("a part of the tests of servers")
	}
	dev := clientDevices[os.Getenv("VERBENA_CLIENT_DEVICE")](t)
	engine := pe.New(pe.Config{})
	tr := must(newTraffic(dev, engine, 1, rdma.Config{EndWithLastConnection: true}))
	fail := tr.ctx.Fail
	tr.wrong = fail
	tr.ended = func(_ *exchange, err error) { fail(err) }
	tr.moved = func(*rdma.Connection) {}
	l := &link{}
	tr.ctx.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			tr.post()
			tr.start(l)
		}
	})
	require.NoError(t, tr.ctx.Start())
	conn, desc := must2(tr.ctx.Export())
	l.conn = conn
	conn.SetUserData(l)
	fmt.Printf("%x\n%x\n", desc, must(tr.mem.Export(dev)))
	lines := bufio.NewReader(os.Stdin)
	peer, memory := hexLine(t, lines), hexLine(t, lines)
	l.peer = must(mmap.Import(dev, memory))
	l.peerArea = must(strconv.Atoi(strings.TrimSpace(must(lines.ReadString('\n')))))
	stop := func() { require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGSTOP)) }
	switch what {
	case neverConnects:
		_, _ = lines.ReadString('\n')
		return
	case stopsAtOnce:
		stop()
	}
	require.NoError(t, conn.Connect(peer))
	if what == stopsHalfWay {
		stop()
	}
	require.NoError(t, engine.Run(t.Context()))
}

func hexLine(t *testing.T, from *bufio.Reader) []byte {
	t.Helper()
	line, err := from.ReadString('\n')
	require.NoError(t, err)
	b, err := hex.DecodeString(strings.TrimSpace(line))
	require.NoError(t, err, "%s", line)
	return b
}

const (
	looping = 8  // clients that are killed and come back, beside one that stays
	places  = 24 // of connections: those whose clients are dead have theirs for some time
)

// server is the program under test. It runs beside the test, which takes the part of
// the network that clients come from.
type server struct {
	t      *testing.T
	on     string // device of the clients
	tr     *traffic
	dev    verbs.Device
	engine *pe.Engine
	memory []byte // descriptor

	areas    []int // free
	stopping bool
	closed   int
	reasons  map[string]int
	steady   atomic.Int64 // what went round with the client that stays
	moved    atomic.Int64
	lives    atomic.Int64
}

// client is one life of a client.
type client struct {
	s       *server
	process *process.Process
	link    *link
	steady  bool
	dying   atomic.Bool // it is stopped or killed by now, or about to be
	exited  chan struct{}
	exitErr error
	stdout  bytes.Buffer // behind the descriptors
}

// do runs f on the engine's goroutine and waits for it.
func (s *server) do(f func()) {
	done := make(chan struct{})
	if err := s.engine.Do(func() { defer close(done); f() }); err != nil {
		s.t.Errorf("%v", err)
		return
	}
	<-done
}

// eventually waits for a condition that is looked at on the engine's goroutine.
func (s *server) eventually(what string, condition func() bool) bool {
	for limit := time.Now().Add(10 * time.Minute); ; {
		ok := false
		s.do(func() { ok = condition() })
		if ok {
			return true
		}
		if time.Now().After(limit) {
			s.t.Errorf("never happened: %s", what)
			return false
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func newServer(t *testing.T, dev verbs.Device, on string) *server {
	s := &server{t: t, dev: dev, on: on, engine: pe.New(pe.Config{}), reasons: map[string]int{}}
	s.tr = must(newTraffic(dev, s.engine, places, rdma.Config{Name: "server"}))
	s.memory = must(s.tr.mem.Export(dev))
	for i := range places {
		s.areas = append(s.areas, i*areaSize)
	}
	s.tr.wrong = func(err error) { t.Errorf("the server: %v", err) }
	s.tr.ended = func(st *exchange, err error) {
		if !st.link.client.dying.Load() {
			t.Errorf("a task to a client that is alive has failed: %v", err)
		}
	}
	s.tr.moved = func(conn *rdma.Connection) {
		s.moved.Add(1)
		if conn.UserData().(*link).client.steady {
			s.steady.Add(1)
		}
	}
	s.tr.ctx.OnStateChange(func(_, next pe.State) {
		switch {
		case next == pe.Running:
			s.tr.post()
		case next != pe.Starting && !s.stopping:
			t.Errorf("the server is %v: %v", next, s.tr.ctx.Err())
		}
	})
	s.tr.ctx.OnConnection(s.changed)
	return s
}

func (s *server) changed(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	l := conn.UserData().(*link)
	switch state {
	case rdma.Ready:
		s.tr.start(l)
	case rdma.Failed:
		if !l.client.dying.Load() {
			s.t.Errorf("the connection to a client that is alive has failed: %v", err)
		}
		for _, known := range []error{rdma.ErrRetryExceeded, rdma.ErrTimeout, err} {
			if errors.Is(err, known) {
				s.reasons[known.Error()]++
				break
			}
		}
		s.tr.check(conn.Close())
	case rdma.Closed:
		s.closed++
		s.areas = append(s.areas, l.area)
		s.tr.check(l.peer.Close())
	}
}

// launch starts a client, which comes with its descriptors.
func (s *server) launch(what string) (*client, error) {
	c := &client{s: s, link: &link{}, exited: make(chan struct{})}
	c.link.client = c
	var err error
	c.process, err = process.Start(context.Background(), process.Program{
		Args: []string{os.Args[0], "-test.run", "^TestClientProcess$", "-test.timeout", "0"},
		Env:  []string{"VERBENA_CLIENT=" + what, "VERBENA_CLIENT_DEVICE=" + s.on}, In: true, Out: true,
	})
	if err != nil {
		return nil, err
	}
	go s.connectClient(c, c.process.In, bufio.NewReader(c.process.Out))
	return c, nil
}

// connectClient exchanges descriptors with a client and connects. The client may be killed
// at any moment.
func (s *server) connectClient(c *client, in interface{ Write([]byte) (int, error) }, out *bufio.Reader) {
	defer func() {
		c.exitErr = c.process.Wait()
		if !c.dying.Load() {
			s.t.Errorf("a client has ended by itself: %v\n%s%s", c.exitErr, c.stdout.String(), c.process.Stderr.String())
		}
		close(c.exited)
	}()
	defer func() { _, _ = c.stdout.ReadFrom(out) }()
	var descs [2][]byte
	for i := range descs {
		line, err := out.ReadString('\n')
		if err == nil {
			descs[i], err = hex.DecodeString(strings.TrimSpace(line))
		}
		if err != nil {
			c.stdout.WriteString(line)
			return // it was killed, or it has failed: its exit code says which
		}
	}
	var desc []byte
	full := true
	for full {
		s.do(func() {
			conn, d, err := s.tr.ctx.Export()
			if full = errors.Is(err, rdma.ErrFull); full {
				return
			}
			s.tr.check(err)
			desc = d
			l := c.link
			l.conn, l.area, s.areas = conn, s.areas[len(s.areas)-1], s.areas[:len(s.areas)-1]
			l.peer, err = mmap.Import(s.dev, descs[1])
			s.tr.check(err)
			conn.SetUserData(l)
		})
		if full { // of connections whose clients are dead, which nobody has noticed yet
			time.Sleep(10 * time.Millisecond)
		}
	}
	_, _ = in.Write(fmt.Appendf(nil, "%x\n%x\n%d\n", desc, s.memory, c.link.area))
	s.do(func() {
		if c.link.conn.State() == rdma.Exported {
			s.tr.check(c.link.conn.Connect(descs[0]))
		}
	})
}

func (c *client) signal(signal os.Signal) {
	c.dying.Store(true)
	_ = c.process.Signal(signal)
}

// kill kills the client and waits until it is gone.
func (c *client) kill(closeUnready bool) {
	c.signal(syscall.SIGKILL)
	<-c.exited
	if !closeUnready {
		return
	}
	// Whoever was not yet there would have until Config.ConnectTimeout.
	c.s.do(func() {
		if conn := c.link.conn; conn != nil && (conn.State() == rdma.Exported || conn.State() == rdma.Connecting) {
			c.s.tr.check(conn.Close())
		}
	})
}

// runClient is one life of a client, which ends after a time of about the given one.
func (s *server) runClient(about time.Duration, wait bool) {
	number := s.lives.Add(1)
	what := clientWorks
	switch number % 8 {
	case 1:
		what = neverConnects
	case 3:
		what = stopsHalfWay
	case 7:
		what = stopsAtOnce
	}
	c, err := s.launch(what)
	if err != nil {
		s.t.Errorf("%v", err)
		return
	}
	if what != clientWorks {
		c.dying.Store(true) // it stops by itself
	}
	if number%3 == 0 { // while they connect
		about = min(about, time.Second)
	}
	time.Sleep(time.Duration(rand.Int64N(int64(2 * about))))
	if number%4 == 2 {
		c.signal(syscall.SIGSTOP)
	}
	if c.dying.Load() { // it holds up nobody
		before := s.steady.Load()
		s.eventually("the client that stays goes on", func() bool { return s.steady.Load() > before+20 })
		if number%2 == 0 || what == stopsHalfWay {
			c.signal(syscall.SIGCONT)
			time.Sleep(time.Duration(rand.Int64N(int64(about))))
		}
	}
	c.kill(!wait)
}

// held is what the program has when only the client that stays is there.
type held struct {
	goroutines, files, places, areas, buffers int
	objects, bytes                            int
}

// more reports whether there is more that comes and goes.
func (h *held) more(before held) bool {
	return h.goroutines > before.goroutines || h.files > before.files
}

func (s *server) held() held {
	var h held
	debug.FreeOSMemory()
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	h.objects, h.bytes = int(heap.HeapObjects), int(heap.HeapAlloc)
	h.goroutines = runtime.NumGoroutine()
	if list, err := os.ReadDir("/dev/fd"); err == nil {
		h.files = len(list)
	}
	s.do(func() {
		h.places, h.areas = len(s.tr.ctx.List()), len(s.areas)
		h.buffers = s.tr.bufs.Available()
	})
	return h
}

// testServerOutlives starts clients, which end or are killed at random moments.
func testServerOutlives(t *testing.T, dev verbs.Device, on string, kills int, over time.Duration) {
	s := newServer(t, dev, on)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	require.NoError(t, s.tr.ctx.Start())
	ran := make(chan error, 1)
	go func() { ran <- s.engine.Run(ctx) }()

	stays, err := s.launch(clientWorks)
	require.NoError(t, err)
	stays.steady = true
	s.eventually("the client that stays works", func() bool { return s.steady.Load() > 0 })

	spans := max(2, kills/40)
	each := (kills + spans*looping - 1) / (spans * looping) // lives of each client in a span
	about := over / time.Duration(spans*each)
	wait := kills > 100 // for Config.ConnectTimeout
	var seen []held
	for span := range spans {
		var all sync.WaitGroup
		for range looping {
			all.Go(func() {
				for range each {
					s.runClient(about, wait)
				}
			})
		}
		all.Wait()
		s.eventually("the dead have been noticed", func() bool { return len(s.areas) == places-1 })
		h := s.held()
		// What looks for the dead on this machine may be at it.
		for limit := time.Now().Add(time.Minute); span > 0 && h.more(seen[0]) && time.Now().Before(limit); h = s.held() {
			time.Sleep(10 * time.Millisecond)
		}
		seen = append(seen, h)
		s.do(func() {
			t.Logf("%d killed, %d connections gone %v, %d rounds of write, read and send; now %+v",
				(span+1)*each*looping, s.closed, s.reasons, s.moved.Load(), h)
		})
	}

	// Every place can be taken.
	s.do(func() {
		var conns []*rdma.Connection
		for range places - 1 {
			conn, _, err := s.tr.ctx.Export()
			if err != nil {
				t.Errorf("a place leaked: %v", err)
				break
			}
			conn.SetUserData(&link{area: -1})
			conns = append(conns, conn)
		}
		s.tr.ctx.OnConnection(nil)
		for _, conn := range conns {
			s.tr.check(conn.Close())
		}
		assert.Equal(t, pe.Running, s.tr.ctx.State())
		assert.NoError(t, s.tr.ctx.Err())
	})
	stays.kill(false)
	s.do(func() {
		s.stopping = true
		s.tr.check(s.tr.ctx.Stop())
	})
	assert.NoError(t, <-ran)
	assert.Equal(t, s.tr.bufs.Total(), s.tr.bufs.Available(), "buffers")
	for _, o := range []interface{ Close() error }{s.tr.ctx, s.engine, s.tr.bufs, s.tr.mem} {
		assert.NoError(t, o.Close())
	}
	_ = stays.link.peer.Close()

	first, last := seen[0], seen[len(seen)-1]
	later := (spans - 1) * each * looping
	assert.LessOrEqual(t, last.goroutines, first.goroutines, "goroutines")
	assert.LessOrEqual(t, last.files, first.files, "files")
	assert.Equal(t, 1, last.places, "connections")
	// What a client leaves for good would show every time: its queue pair alone is
	// some kilobytes.
	assert.Less(t, last.bytes-first.bytes, 256<<10+later<<10, "bytes in Go's heap after %d more clients", later)
}

// A server outlives its clients: they are killed at random moments and come back, stop
// half-way or never connect. The server works with the others, and keeps no resources of the
// clients that died.
func TestSoakServerOutlivesItsClients(t *testing.T) {
	testServerOutlives(t, openSoft(t), "soft", soak.Rounds(t, 24, 200), soak.Duration(t, 3*time.Second, 10*time.Minute))
}
