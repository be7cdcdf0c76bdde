package await_test

import (
	"bufio"
	"context"
	"encoding/hex"
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

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// BenchmarkRoundTrip is one round trip between two processes, each with a goroutine that waits for
// what comes and then sends: writes with immediate of 8 bytes, through shared memory and by UDP,
// with engines that spin before they sleep (Config.Spin) and with engines that sleep at once;
// beside 8 bytes through TCP.
func BenchmarkRoundTrip(b *testing.B) {
	for _, way := range []string{"SharedMemory", "UDP"} {
		for _, how := range []struct {
			name string
			set  roundTrip
		}{
			{"spin", roundTrip{}},
			{"sleep", roundTrip{Spin: -1}},
			{"sleep,Do", roundTrip{Spin: -1, Do: true}},
		} {
			b.Run(way+"/"+how.name, func(b *testing.B) {
				set := how.set
				set.UDP = way == "UDP"
				set.run(b)
			})
		}
	}
	b.Run("TCP", func(b *testing.B) { roundTrip{TCP: true}.run(b) })
}

// roundTrip says what a process of BenchmarkRoundTrip does.
type roundTrip struct {
	TCP  bool
	UDP  bool          // otherwise shared memory
	Spin time.Duration // of the engine
	Do   bool          // functions go to the engine's goroutine (pe.Engine.Do)
}

const roundTripPeer = "VERBENA_ROUND_TRIP"

// TestRoundTripPeer is the other process of BenchmarkRoundTrip.
func TestRoundTripPeer(t *testing.T) {
	text, found := os.LookupEnv(roundTripPeer)
	if !found {
		t.Skip("it is started by BenchmarkRoundTrip")
	}
	var set roundTrip
	require.NoError(t, json.Unmarshal([]byte(text), &set))
	if set.TCP {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		tell(t, os.Stdout, []byte(l.Addr().String()))
		conn, err := l.Accept()
		require.NoError(t, err)
		defer conn.Close()
		for word := make([]byte, 8); ; {
			if _, err := io.ReadFull(conn, word); err != nil {
				return
			}
			_, err := conn.Write(word)
			require.NoError(t, err)
		}
	}
	e := set.open(t)
	e.connect(t, bufio.NewReader(os.Stdin), os.Stdout)
	for range e.arrived {
		require.NoError(t, e.send())
	}
	<-e.ended // the other end has closed the connection
	e.close(t)
}

func (set roundTrip) run(b *testing.B) {
	peer := exec.Command(os.Args[0], "-test.run", "^TestRoundTripPeer$", "-test.timeout", "1h")
	text, err := json.Marshal(set)
	require.NoError(b, err)
	peer.Env = append(os.Environ(), roundTripPeer+"="+string(text))
	peer.Stderr = os.Stderr
	in, err := peer.StdinPipe()
	require.NoError(b, err)
	out, err := peer.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, peer.Start())
	lines := bufio.NewReader(out)
	var turn func() error
	var end func()
	if set.TCP {
		conn, err := net.Dial("tcp4", string(hear(b, lines)))
		require.NoError(b, err)
		word := make([]byte, 8)
		turn = func() error {
			if _, err := conn.Write(word); err != nil {
				return err
			}
			_, err := io.ReadFull(conn, word)
			return err
		}
		end = func() { require.NoError(b, conn.Close()) }
	} else {
		e := set.open(b)
		e.connect(b, lines, in)
		turn = func() error {
			err := e.send()
			if _, more := <-e.arrived; !more && err == nil {
				err = errors.New("the connection has ended")
			}
			return err
		}
		end = func() {
			require.NoError(b, await.Func(background, e.engine, e.conn.Close))
			require.NoError(b, <-e.ended)
			e.close(b)
		}
	}
	times := make([]time.Duration, 0, b.N)
	for range 100 {
		require.NoError(b, turn())
	}
	b.ResetTimer()
	before := usedBy(b, os.Getpid(), peer.Process.Pid)
	last := time.Now()
	for range b.N {
		if err := turn(); err != nil {
			b.Fatal(err)
		}
		now := time.Now()
		times = append(times, now.Sub(last))
		last = now
	}
	b.StopTimer()
	used := usedBy(b, os.Getpid(), peer.Process.Pid)
	b.ReportMetric(float64(used.time-before.time)/1000/float64(b.N), "µs-processor/op")
	b.ReportMetric(float64(used.slices-before.slices)/float64(b.N), "wake-ups/op")
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1000, "µs-median")
	b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds())/1000, "µs-at-99%")
	end()
	require.NoError(b, peer.Wait())
}

// roundTripEnd is one end of a connection.
type roundTripEnd struct {
	engine      *pe.Engine
	dev         *soft.Device
	r           *rdma.Connections
	conn        *rdma.Connection
	mem, remote *mmap.Map
	bufs        *bufinv.Inventory
	pool        *rdma.Pool
	submit      func()
	path        verbs.Path
	hand        func(func()) error // over to the engine
	arrived     chan struct{}      // closed at the end
	ended       chan error
}

func (set roundTrip) open(t testing.TB) *roundTripEnd {
	e := &roundTripEnd{engine: pe.New(pe.Config{Spin: set.Spin}), arrived: make(chan struct{}, 64), ended: make(chan error, 1)}
	var err error
	e.dev, err = soft.Open(soft.Config{DisableLocal: set.UDP})
	require.NoError(t, err)
	e.r, err = rdma.New(e.dev, rdma.Config{Engine: e.engine, Permissions: everything, EndWithLastConnection: true})
	require.NoError(t, err)
	e.mem, err = mmap.Alloc(e.dev, 4096, everything)
	require.NoError(t, err)
	e.bufs, err = bufinv.New(64)
	require.NoError(t, err)
	e.pool, err = e.r.Pool(16, pe.FreeTask, pe.FailContext)
	require.NoError(t, err)
	require.NoError(t, e.r.Receive(64, 0, func(*rdma.Message) { e.arrived <- struct{}{} }))
	if e.hand = e.engine.Dispatch; set.Do {
		e.hand = e.engine.Do
	}
	if e.path = verbs.PathSharedMemory; set.UDP {
		e.path = verbs.PathNetwork
	}
	e.submit = func() {
		e.r.Fail(pe.SubmitOrFree(e.pool.WriteImm(e.conn, e.bufs.Source(e.mem, 0, 8), e.bufs.Target(e.remote, 64, 8), 1)))
	}
	return e
}

func (e *roundTripEnd) connect(t testing.TB, in *bufio.Reader, out io.Writer) {
	require.NoError(t, e.r.Start())
	conn, desc, err := e.r.Export()
	require.NoError(t, err)
	e.conn = conn
	tell(t, out, desc)
	memory, err := e.mem.Export(e.dev)
	require.NoError(t, err)
	tell(t, out, memory)
	theirs := hear(t, in)
	e.remote, err = mmap.Import(e.dev, hear(t, in))
	require.NoError(t, err)
	require.NoError(t, conn.Connect(theirs))
	go func() {
		err := e.engine.Run(context.Background())
		close(e.arrived)
		e.ended <- err
	}()
	require.NoError(t, await.State(background, e.r, pe.Running))
	path := verbs.PathUnknown
	for deadline := time.Now().Add(time.Minute); path != e.path; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "the path is %v", path)
		require.NoError(t, await.Func(background, e.engine, func() error { path = conn.Counters().Path; return nil }))
	}
}

func (e *roundTripEnd) send() error { return e.hand(e.submit) }

func (e *roundTripEnd) close(t testing.TB) {
	require.NoError(t, e.bufs.Close())
	require.NoError(t, e.r.Close())
	require.NoError(t, e.engine.Close())
	require.NoError(t, e.remote.Close())
	require.NoError(t, e.mem.Close())
	require.NoError(t, e.dev.Close())
}

// tell writes a line to the other process, and hear reads one.
func tell(t testing.TB, to io.Writer, data []byte) {
	_, err := io.WriteString(to, hex.EncodeToString(data)+"\n")
	require.NoError(t, err)
}

func hear(t testing.TB, from *bufio.Reader) []byte {
	line, err := from.ReadString('\n')
	require.NoError(t, err)
	data, err := hex.DecodeString(strings.TrimSpace(line))
	require.NoError(t, err)
	return data
}

// usage is what processes have used of the processors.
type usage struct {
	time   time.Duration
	slices int // how often a thread of theirs got a processor
}

func usedBy(t testing.TB, processes ...int) (u usage) {
	for _, pid := range processes {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		require.NoError(t, err)
		for _, path := range threads {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			var took, waited time.Duration
			var slices int
			_, err = fmt.Sscan(string(text), &took, &waited, &slices)
			require.NoError(t, err)
			u.time += took
			u.slices += slices
		}
	}
	return u
}
