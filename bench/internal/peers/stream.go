package peers

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/internal/process"
	"github.com/verbena-rdma/verbena/rsocket"
)

// streams is bench stream: connections of package rsocket on a device, or of TCP without one.
type streams struct {
	path   string
	device string
}

func (streams) measures(f figure) bool {
	return slices.ContainsFunc(measurements, func(m measurement) bool { return m.kind == f.kind })
}
func (streams) firstCount(figure) int { return 0 }

func (s streams) commands(j *job) (server, client process.Program) {
	at := net.JoinHostPort(j.server.String(), number(j.port))
	m := slices.IndexFunc(measurements, func(m measurement) bool { return m.kind == j.figure.kind })
	what := []string{s.path, "stream", "-d", s.device, "-measure", measurements[m].name, "-s", number(j.figure.size)}
	server.Args = slices.Concat(what, []string{"-l", at})
	client.Args = slices.Concat(what, []string{"-t", j.time.String(), "-callers", number(j.figure.callers), at})
	return server, client
}

func (streams) read(j *job, out string) (s sample, err error) {
	return j.sample(out, 1, lines(out)...)
}

// RunStream runs bench stream, one end of a stream. It is for bench peers.
func RunStream(ctx context.Context, args []string) (err error) {
	f := flag.NewFlagSet("bench stream", flag.ExitOnError)
	name := f.String("d", "", "the device; empty: TCP")
	listen := f.String("l", "", "serve a client at this TCP `address`")
	size := f.Int("s", 1, "bytes of a message")
	measure := f.String("measure", "trip", "what: `trip`, send, connect, http or bodies; the server's must be the same")
	callers := f.Int("callers", 1, "HTTP requests at the same time, each with a connection")
	duration := f.Duration("t", time.Second, "time of the measurement")
	_ = f.Parse(args) // exits on an error
	i := slices.IndexFunc(measurements, func(m measurement) bool { return m.name == *measure })
	if i < 0 || *size < 1 || *size > maxMessage || *duration <= 0 || f.NArg() != 1 && *listen == "" {
		return fmt.Errorf("name the address of the server, or -l ADDRESS to be the server; "+
			"a measurement is trip, send, connect, http or bodies; the time must be positive, and the size from 1 to %d", maxMessage)
	}
	m := measurements[i]
	s, err := openStack(*name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if *listen != "" {
		return s.serve(*listen, func(l net.Listener) error { return m.serve(l, *size) })
	}
	control, err := new(net.Dialer).DialContext(ctx, "tcp", f.Arg(0))
	if err != nil {
		return err
	}
	defer control.Close() // which ends the server
	address, err := bufio.NewReader(control).ReadString('\n')
	if err != nil {
		return fmt.Errorf("read the server's address: %w", err)
	}
	address = strings.TrimSpace(address)
	return m.measure(&client{func(ctx context.Context) (net.Conn, error) { return s.dial(ctx, address) }, *size, *callers, *duration})
}

// maxMessage bounds the memory of a message.
const maxMessage = 1 << 30

// client is what a measurement needs.
type client struct {
	dial     func(ctx context.Context) (net.Conn, error)
	size     int
	callers  int
	duration time.Duration
}

// measurement is one thing to measure. The server's part ends when the listener is closed.
type measurement struct {
	kind    kind
	name    string
	serve   func(l net.Listener, size int) error
	measure func(c *client) error
}

var measurements = []measurement{
	{trip, "trip", forEach(echo), onOne(roundTrips)},
	{stream, "send", forEach(count), onOne(send)},
	{connecting, "connect", forEach(echo), connect},
	{requests, "http", serveHTTP, func(c *client) error { return c.requests(printRate) }},
	{bodies, "bodies", serveHTTP, func(c *client) error { return c.requests(printBodies) }},
}

// forEach serves one connection after the other.
func forEach(serve func(conn net.Conn, buf []byte) error) func(l net.Listener, size int) error {
	return func(l net.Listener, size int) error {
		for {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			err = serve(conn, make([]byte, size))
			if err = errors.Join(err, conn.Close()); err != nil {
				return err
			}
		}
	}
}

// onOne measures on one connection.
func onOne(measure func(conn net.Conn, size int, d time.Duration) error) func(c *client) error {
	return func(c *client) error {
		conn, err := c.dial(context.Background())
		if err != nil {
			return err
		}
		defer conn.Close()
		return measure(conn, c.size, c.duration)
	}
}

// stack makes and accepts connections.
type stack struct {
	dial   func(ctx context.Context, address string) (net.Conn, error)
	listen func(address string) (net.Listener, error)
	close  func() error
}

func openStack(name string) (s stack, err error) {
	if name == "" {
		return stack{
			func(ctx context.Context, address string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", address)
			},
			func(address string) (net.Listener, error) { return net.Listen("tcp", address) },
			func() error { return nil },
		}, nil
	}
	dev, err := device.Open(name)
	if err != nil {
		return s, err
	}
	r, err := rsocket.New(rsocket.Config{Device: dev})
	if err != nil {
		return s, errors.Join(err, dev.Close())
	}
	return stack{
		func(ctx context.Context, address string) (net.Conn, error) { return r.Dial(ctx, address) },
		func(address string) (net.Listener, error) { return r.Listen(address) },
		func() error { return errors.Join(r.Close(), dev.Close()) },
	}, nil
}

// serve serves one client. The client learns the stream's address by TCP, and closes that connection
// at its end.
func (s stack) serve(address string, serve func(l net.Listener) error) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	l, err := s.listen(net.JoinHostPort(host, "0"))
	if err != nil {
		return err
	}
	defer l.Close()
	controls, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer controls.Close()
	control, err := controls.Accept()
	if err != nil {
		return err
	}
	defer control.Close()
	if _, err := fmt.Fprintln(control, l.Addr()); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- serve(l) }()
	left := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, control)
		close(left)
	}()
	select {
	case err := <-ended:
		return err
	case <-left:
		_ = l.Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

// echo sends each message back.
func echo(conn net.Conn, buf []byte) error {
	for {
		if _, err := io.ReadFull(conn, buf); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if _, err := conn.Write(buf); err != nil {
			return err
		}
	}
}

// count counts bytes, and sends their number when the other end has sent all.
func count(conn net.Conn, buf []byte) error {
	if len(buf) < leastRead {
		buf = make([]byte, leastRead)
	}
	for total := uint64(0); ; {
		n, err := conn.Read(buf)
		total += uint64(n)
		if errors.Is(err, io.EOF) {
			_, err = conn.Write(binary.BigEndian.AppendUint64(nil, total))
			return err
		}
		if err != nil {
			return err
		}
	}
}

// serveHTTP answers each request with as many bytes.
func serveHTTP(l net.Listener, size int) error {
	body := make([]byte, size)
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }))
}

// connect prints the median and the mean of the time of a connection that is made, carries a byte
// there and back, and is closed, in µs.
func connect(c *client) error {
	buf := make([]byte, c.size)
	var t times
	for t.begin(c.duration); !t.over(); t.took() {
		conn, err := c.dial(context.Background())
		if err != nil {
			return err
		}
		if _, err := conn.Write(buf); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, buf); err != nil {
			return err
		}
		if err := conn.Close(); err != nil {
			return err
		}
	}
	return t.printMean()
}

// requests has callers make HTTP requests, one after the other each, and prints the result.
func (c *client) requests(print func(all times, callers int) error) error {
	transport := &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		MaxIdleConnsPerHost: c.callers,
		MaxConnsPerHost:     c.callers,
	}
	defer transport.CloseIdleConnections()
	each := make([]times, c.callers)
	errs := make([]error, c.callers)
	var group sync.WaitGroup
	for i := range each {
		group.Go(func() {
			t := &each[i]
			for t.begin(c.duration); !t.over() && errs[i] == nil; t.took() {
				errs[i] = get(transport, c.size)
			}
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var all times
	for i := range each {
		all.samples = append(all.samples, each[i].samples...)
	}
	return print(all, c.callers)
}

func get(transport *http.Transport, size int) error {
	r, err := http.NewRequest(http.MethodGet, "http://server/", nil)
	if err != nil {
		return err
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	n, err := io.Copy(io.Discard, answer.Body)
	if err == nil && n != int64(size) {
		err = fmt.Errorf("a body of %d bytes, want %d", n, size)
	}
	return err
}

// printRate prints requests a second.
func printRate(all times, callers int) error {
	_, err := fmt.Fprintf(os.Stdout, "%g\n", float64(callers)*1e6/all.mean())
	return err
}

// printBodies prints the median and the 99th percentile, in µs.
func printBodies(all times, _ int) error {
	_, err := fmt.Fprintf(os.Stdout, "%g\n%g\n", all.percentile(50), all.percentile(99))
	return err
}

// times are how long successive operations took, in µs, after a warm-up of a fifth of the duration.
type times struct {
	samples    []float64
	start, now time.Time
	warmUp     time.Duration
}

func (t *times) begin(d time.Duration) {
	t.start, t.warmUp = time.Now(), d/5
	t.now = t.start
}

// over reports whether the time is over: that of the warm-up and five times as long.
func (t *times) over() bool { return t.now.Sub(t.start) >= 6*t.warmUp && len(t.samples) > 0 }

// took is called when an operation has ended.
func (t *times) took() {
	before := t.now
	if t.now = time.Now(); before.Sub(t.start) >= t.warmUp {
		t.samples = append(t.samples, t.now.Sub(before).Seconds()*1e6)
	}
}

func (t *times) mean() float64 {
	sum := 0.0
	for _, v := range t.samples {
		sum += v
	}
	return sum / float64(len(t.samples))
}

func (t *times) percentile(p int) float64 {
	slices.Sort(t.samples)
	return t.samples[(len(t.samples)-1)*p/100]
}

func (t *times) printMean() error {
	_, err := fmt.Fprintf(os.Stdout, "%g\n%g\n", t.percentile(50), t.mean())
	return err
}

// roundTrips prints the median and the mean of round trips, in µs.
func roundTrips(conn net.Conn, size int, d time.Duration) error {
	buf := make([]byte, size)
	var t times
	for t.begin(d); !t.over(); t.took() {
		if _, err := conn.Write(buf); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, buf); err != nil {
			return err
		}
	}
	return t.printMean()
}

// leastRead is how much the reader of a stream takes at a time, at least.
const leastRead = 64 << 10

// send writes for a time, waits until all has been read, and prints bytes a second.
func send(conn net.Conn, size int, d time.Duration) error {
	buf := make([]byte, size)
	begin := time.Now()
	for time.Since(begin) < d {
		for range max(1, 4096/size) { // the clock takes time, too
			if _, err := conn.Write(buf); err != nil {
				return err
			}
		}
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err
	}
	total := make([]byte, 8)
	if _, err := io.ReadFull(conn, total); err != nil {
		return fmt.Errorf("wait until all has been read: %w", err)
	}
	_, err := fmt.Fprintf(os.Stdout, "%g\n", float64(binary.BigEndian.Uint64(total))/time.Since(begin).Seconds())
	return err
}
