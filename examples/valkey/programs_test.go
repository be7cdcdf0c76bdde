//go:build linux

package valkey

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// server is a process of a server that is reached by TCP and by RDMA at the same address, also when it is started again.
type server struct {
	addr  string
	start func() // it is not running
	stop  func()
	kill  func() // in place of stop
}

// kinds are the servers to test with: one in Go, and Valkey's own.
var kinds = map[string]func(t testing.TB) *server{"in Go": goServer, "Valkey": valkeyServer}

// servers runs a test with each server.
func servers(t *testing.T, f func(t *testing.T, s *server)) {
	t.Helper()
	for name, start := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, start(t))
		})
	}
}

// freePort returns a port that the system gives to no outgoing connection, also while the server is down.
func freePort(t testing.TB) string {
	for {
		port := strconv.Itoa(20_000 + rand.IntN(10_000)) // Linux gives those from 32,768 on
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			require.NoError(t, l.Close())
			return port
		}
	}
}

// run starts a server, whose command is that for a port. It is ready when its output contains a text.
func run(t testing.TB, command func(port string) *exec.Cmd, ready string) *server {
	t.Helper()
	port := freePort(t)
	s := &server{addr: net.JoinHostPort("127.0.0.1", port)}
	s.start = func() {
		cmd := command(port)
		output, err := cmd.StdoutPipe()
		require.NoError(t, err)
		cmd.Stderr, cmd.Dir = cmd.Stdout, t.TempDir()
		require.NoError(t, cmd.Start())
		var log bytes.Buffer
		begun, ended := make(chan bool, 1), make(chan struct{})
		go func() {
			defer close(ended)
			for lines := bufio.NewScanner(output); lines.Scan(); {
				fmt.Fprintln(&log, lines.Text())
				if strings.Contains(lines.Text(), ready) {
					begun <- true
				}
			}
			close(begun)
		}()
		end := func(by os.Signal) error {
			_ = cmd.Process.Signal(by)
			<-ended
			err := cmd.Wait()
			if t.Failed() {
				t.Log(log.String())
			}
			return err
		}
		s.stop, s.kill = func() { assert.NoError(t, end(syscall.SIGTERM), "%s", &log) }, func() { _ = end(syscall.SIGKILL) }
		if !<-begun {
			t.Fatal(log.String())
		}
	}
	s.start()
	t.Cleanup(func() { s.stop() })
	return s
}

// goServer is a small server in Go: this program, which TestMain makes one.
func goServer(t testing.TB) *server {
	return run(t, func(port string) *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), serverVariable+"=127.0.0.1:"+port, "GORACE=atexit_sleep_ms=0")
		return cmd
	}, "ready")
}

// valkeyServer is Valkey's own server, on the software device.
func valkeyServer(t testing.TB) *server {
	verbena, folder := built(t)
	return run(t, func(port string) *exec.Cmd {
		return exec.Command(verbena, "run", "-d", "soft-lo", "--", filepath.Join(folder, "src/valkey-server"), "--port", port, "--bind", "127.0.0.1", "--protected-mode", "no", "--save", "",
			"--loadmodule", filepath.Join(folder, "src/valkey-rdma.so"), "--rdma-bind", "127.0.0.1", "--rdma-port", port)
	}, "accept connections rdma")
}

// built returns the paths of what make build has built, and of Valkey, or skips the test, in CI too: make fabric
// runs it.
func built(t testing.TB) (verbena, folder string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	verbena, folder = filepath.Join(root, "bin/verbena"), filepath.Join(root, ".build/fabric/src/valkey")
	for _, path := range []string{verbena, filepath.Join(root, "bin/libverbena.so"), filepath.Join(folder, "src/valkey-rdma.so"), filepath.Join(folder, "tests/rdma/rdma-test")} {
		if _, err := os.Stat(path); err != nil {
			t.Skipf("%s is not there: make build and scripts/fabric.sh valkey build it", path)
		}
	}
	return verbena, folder
}

// client speaks RESP.
type client struct {
	net.Conn
	in *bufio.Reader
}

// dialers are functions that connect, by TCP and on each path of RDMA.
func dialers(t testing.TB, s *server) map[string]func() client {
	dial := func(f func(ctx context.Context, network, addr string) (net.Conn, error)) func() client {
		return func() client {
			c, err := f(t.Context(), "tcp", s.addr)
			require.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
			require.NoError(t, c.SetDeadline(time.Now().Add(5*time.Minute))) // ends what hangs
			return client{c, bufio.NewReaderSize(c, 64<<10)}
		}
	}
	d := map[string]func() client{"TCP": dial(new(net.Dialer).DialContext)}
	for name, dev := range paths {
		d[name] = dial(open(t, dev, Config{}).DialContext)
	}
	return d
}

func (c client) ask(t testing.TB, args ...string) string {
	t.Helper()
	_, err := io.WriteString(c, request(args...))
	require.NoError(t, err)
	r, err := reply(c.in)
	require.NoError(t, err)
	return r
}

// same runs a test by TCP and by RDMA. What it returns is to be the same.
func same(t *testing.T, s *server, f func(dial func() client) []string) {
	t.Helper()
	d := dialers(t, s)
	want := f(d["TCP"])
	require.NotEmpty(t, want)
	delete(d, "TCP")
	for path, dial := range d {
		got := f(dial)
		require.Len(t, got, len(want))
		for i := range want {
			if want[i] != got[i] { // Equal would print megabytes
				t.Fatalf("reply %d is %.100q by RDMA over %s, and %.100q by TCP", i, got[i], path, want[i])
			}
		}
	}
}

// Values of all sizes are the same.
func TestValues(t *testing.T) {
	servers(t, func(t *testing.T, s *server) {
		largest := 64 << 20
		if testing.Short() {
			largest = 2 << 20
		}
		same(t, s, func(dial func() client) (replies []string) {
			c := dial()
			sizes := []int{largest}
			for n := 1; n < largest; n *= 4 { // Valkey's buffers have 1 MiB
				sizes = append(sizes, n-1, n, n+1)
			}
			for _, n := range sizes {
				b := make([]byte, n)
				_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
				replies = append(replies, c.ask(t, "SET", "k", string(b)))
				v := c.ask(t, "GET", "k")
				require.True(t, strings.HasSuffix(v, string(b)))
				replies = append(replies, v)
			}
			return append(replies, c.ask(t, "GET", "nothing"), c.ask(t, "NOTHING"))
		})
	})
}

// A pipeline gets its replies in order, while it is still being written.
func TestPipeline(t *testing.T) {
	servers(t, func(t *testing.T, s *server) {
		same(t, s, func(dial func() client) (replies []string) {
			c := dial()
			const n = 5000
			written := make(chan error)
			go func() {
				out := bufio.NewWriter(c)
				for i := range n {
					_, _ = out.WriteString(request("SET", fmt.Sprint("k", i), strings.Repeat(fmt.Sprint(i), i%500)) + request("GET", fmt.Sprint("k", i/2)))
				}
				written <- out.Flush()
			}()
			for range 2 * n {
				r, err := reply(c.in)
				require.NoError(t, err)
				replies = append(replies, r)
			}
			require.NoError(t, <-written)
			return replies
		})
	})
}

// Messages come to those who have subscribed.
func TestPublish(t *testing.T) {
	servers(t, func(t *testing.T, s *server) {
		same(t, s, func(dial func() client) (replies []string) {
			reader, writer := dial(), dial()
			replies = append(replies, reader.ask(t, "SUBSCRIBE", "news"))
			for i := range 100 {
				replies = append(replies, writer.ask(t, "PUBLISH", "news", strings.Repeat("x", i*100)))
				r, err := reply(reader.in)
				require.NoError(t, err)
				replies = append(replies, r)
			}
			require.NoError(t, reader.Close())
			return replies
		})
	})
}

// BLPOP waits: until an element comes, until its own time is over, and until the deadline of the connection,
// which goes on afterwards.
func TestBlockingPop(t *testing.T) {
	servers(t, func(t *testing.T, s *server) {
		same(t, s, func(dial func() client) (replies []string) {
			c, other := dial(), dial()
			replies = append(replies, c.ask(t, "BLPOP", "list", "0.05"))
			_, err := io.WriteString(c, request("BLPOP", "list", "0"))
			require.NoError(t, err)
			require.NoError(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
			_, err = reply(c.in)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.NoError(t, c.SetReadDeadline(time.Time{}))
			replies = append(replies, other.ask(t, "RPUSH", "list", "element"))
			r, err := reply(c.in)
			require.NoError(t, err)
			return append(replies, r, c.ask(t, "PING"))
		})
	})
}

// A server that restarts ends its connections, and can be dialled again.
func TestServerRestarts(t *testing.T) {
	servers(t, func(t *testing.T, s *server) {
		same(t, s, func(dial func() client) (replies []string) {
			c := dial()
			replies = append(replies, c.ask(t, "SET", "k", "v"))
			s.stop()
			_, err := reply(c.in)
			require.ErrorIs(t, err, io.EOF)
			s.start()
			return append(replies, dial().ask(t, "GET", "k"))
		})
	})
}

// The connections of a server that is killed end, with what was read before. On shared memory they do so without
// waiting for a time-out. The same dialer reaches the next server.
func TestServerKilled(t *testing.T) {
	servers(t, func(t *testing.T, s *server) {
		for path, dial := range dialers(t, s) {
			c, idle := dial(), dial()
			require.Equal(t, "+OK", c.ask(t, "SET", "k", "v"))
			require.Equal(t, "+PONG", idle.ask(t, "PING"))
			s.kill()
			_, err := io.WriteString(c, request("PING"))
			require.True(t, path != "shared memory" || err == nil || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE), "%v", err)
			for _, c := range []client{c, idle} {
				_, err := reply(c.in)
				require.True(t, errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET), "%s: %v", path, err)
			}
			_, err = io.WriteString(c, request("PING"))
			require.True(t, path == "TCP" || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE), "%s: %v", path, err)
			s.start()
			require.Equal(t, "$-1", dial().ask(t, "GET", "k"))
		}
	})
}

// rdma-test, Valkey's own test of its protocol, with a server in Go.
func TestValkeyClient(t *testing.T) {
	verbena, folder := built(t)
	s := goServer(t)
	host, port, err := net.SplitHostPort(s.addr)
	require.NoError(t, err)
	keys := "8192"
	if testing.Short() {
		keys = "500"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, verbena, "run", "-d", "soft-lo", "--", filepath.Join(folder, "tests/rdma/rdma-test"), "--thread", "4", "--maxkeys", keys, "-h", host, "-p", port).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "Valkey Over RDMA test [OK]")
}

// BenchmarkServers is a table of rate and latency by TCP and on the paths of RDMA: the medians of rounds that take
// turns. A latency is that of a pipeline.
func BenchmarkServers(b *testing.B) {
	type row struct {
		name, key, command   string
		clients, depth, size int
	}
	get := func(clients, depth, size int) row {
		return row{fmt.Sprintf("GET/bytes=%d/clients=%d/pipeline=%d", size, clients, depth), fmt.Sprint(size), request("GET", fmt.Sprint(size)), clients, depth, len(fmt.Sprintf("$%d\r\n", size)) + size + 2}
	}
	set := func(size int) row {
		return row{fmt.Sprintf("SET/bytes=%d", size), fmt.Sprint(size), request("SET", fmt.Sprint(size), strings.Repeat("x", size)), 1, 1, len("+OK\r\n")}
	}
	for name, start := range kinds {
		b.Run("server="+name, func(b *testing.B) {
			d := dialers(b, start(b))
			delete(d, "UDP with loss")
			for _, r := range []row{get(1, 1, 64), get(16, 1, 64), get(1, 16, 64), get(1, 1, 4<<10), get(1, 1, 1<<20), set(64 << 10)} {
				b.Run(r.name, func(b *testing.B) {
					pipeline := strings.Repeat(r.command, r.depth)
					size, _ := strconv.Atoi(r.key)
					d["TCP"]().ask(b, "SET", r.key, strings.Repeat("x", size))
					rates, latencies := map[string][]float64{}, map[string][]float64{}
					for b.Loop() {
						for path, dial := range d {
							var list []client // the only ones
							for range r.clients {
								list = append(list, dial())
							}
							begun, n := time.Now(), max(1, min(2000, 32<<20/(len(pipeline)+r.size*r.depth))/r.clients)
							took := make([][]float64, len(list))
							var all sync.WaitGroup
							for i, c := range list {
								all.Go(func() {
									for range n {
										begun := time.Now()
										_, err := io.WriteString(c, pipeline)
										assert.NoError(b, err)
										for range r.depth {
											_, err = c.in.Discard(r.size)
											assert.NoError(b, err)
										}
										took[i] = append(took[i], time.Since(begun).Seconds()*1e6)
									}
								})
							}
							all.Wait()
							rates[path] = append(rates[path], float64(n*r.depth*r.clients)/time.Since(begun).Seconds())
							latencies[path] = append(latencies[path], median(slices.Concat(took...)))
							for _, c := range list {
								assert.NoError(b, c.Close())
							}
						}
					}
					b.ReportMetric(0, "ns/op")
					for path, list := range rates {
						path = strings.ReplaceAll(path, " ", "-")
						b.ReportMetric(median(list), path+"/s")
						b.ReportMetric(median(latencies[strings.ReplaceAll(path, "-", " ")]), path+"-µs")
					}
				})
			}
		})
	}
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}
