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
	"os"
	"slices"
	"strings"
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

func (streams) measures(f figure) bool { return f.kind == trip || f.kind == stream }
func (streams) firstCount(figure) int  { return 0 }

func (s streams) commands(j *job) (server, client process.Program) {
	at := net.JoinHostPort(j.server.String(), number(j.port))
	server.Args = []string{s.path, "stream", "-d", s.device, "-l", at}
	client.Args = []string{s.path, "stream", "-d", s.device, "-s", number(j.figure.size), "-t", j.time.String(), fmt.Sprintf("-trip=%v", j.figure.kind == trip), at}
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
	trips := f.Bool("trip", false, "measure round trips")
	duration := f.Duration("t", time.Second, "time of the measurement")
	_ = f.Parse(args) // exits on an error
	if *size < 1 || *duration <= 0 || f.NArg() != 1 && *listen == "" {
		return errors.New("name the address of the server, or -l ADDRESS to be the server; size and time must be positive")
	}
	s, err := openStack(*name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if *listen != "" {
		return s.serve(*listen)
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
	conn, err := s.dial(ctx, strings.TrimSpace(address))
	if err != nil {
		return err
	}
	defer conn.Close()
	if *trips {
		return roundTrips(conn, *size, *duration)
	}
	return send(conn, *size, *duration)
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
func (s stack) serve(address string) error {
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
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	head := make([]byte, 5)
	if _, err := io.ReadFull(conn, head); err != nil {
		return err
	}
	if err := answer(conn, head[0] == doEcho, make([]byte, binary.BigEndian.Uint32(head[1:]))); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, _ = io.Copy(io.Discard, control)
	return nil
}

// The first byte of a stream says what the server does with the rest. The size of messages follows.
const (
	doEcho  byte = 'e' // send each message back
	doCount byte = 'c' // count bytes, and send their number behind the end
)

func answer(conn net.Conn, echo bool, buf []byte) error {
	for total := uint64(0); ; {
		if echo {
			if _, err := io.ReadFull(conn, buf); err != nil {
				return err
			}
			if _, err := conn.Write(buf); err != nil {
				return err
			}
			continue
		}
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

func greet(conn net.Conn, do byte, size int) error {
	_, err := conn.Write(binary.BigEndian.AppendUint32([]byte{do}, uint32(size)))
	return err
}

// roundTrips prints the median and the mean of round trips, in µs.
func roundTrips(conn net.Conn, size int, d time.Duration) error {
	if err := greet(conn, doEcho, size); err != nil {
		return err
	}
	buf := make([]byte, size)
	var samples []float64
	sum := 0.0
	begin := time.Now()
	for now := begin; now.Sub(begin) < d+d/5 || len(samples) == 0; {
		if _, err := conn.Write(buf); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, buf); err != nil {
			return err
		}
		start := now
		if now = time.Now(); start.Sub(begin) >= d/5 { // after a warm-up
			samples = append(samples, now.Sub(start).Seconds()*1e6)
			sum += samples[len(samples)-1]
		}
	}
	slices.Sort(samples)
	_, err := fmt.Fprintf(os.Stdout, "%g\n%g\n", samples[len(samples)/2], sum/float64(len(samples)))
	return err
}

// leastRead is how much the reader of a stream takes at a time, at least.
const leastRead = 64 << 10

// send writes for a time, waits until all has been read, and prints bytes a second.
func send(conn net.Conn, size int, d time.Duration) error {
	if err := greet(conn, doCount, max(size, leastRead)); err != nil {
		return err
	}
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
