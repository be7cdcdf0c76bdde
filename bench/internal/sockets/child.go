package sockets

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/footprint"
	"github.com/verbena-rdma/verbena/bench/internal/profile"
	"github.com/verbena-rdma/verbena/internal/processor"
)

// warmUp precedes each measurement.
const warmUp = 300 * time.Millisecond

// child is one of the processes that are measured. It answers the requests of the first process.
type child struct {
	o     options
	stack stack
	peer  string // address of the server

	// of the server:
	conns  net.Listener
	web    queue // of connections whose client speaks HTTP
	serves sync.WaitGroup
	mu     sync.Mutex
	sinks  []*atomic.Uint64 // bytes that each connection has received
	open   map[net.Conn]bool

	// of the client:
	held    []net.Conn
	written int // of these, the first ones, which goroutines write to
	writes  sync.WaitGroup

	stopping atomic.Bool // writes end
}

// serve answers requests until standard input ends.
func serve(ctx context.Context, o options) (err error) {
	stop, err := profile.Start(o.profile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	c := &child{o: o, open: make(map[net.Conn]bool)}
	defer func() { err = errors.Join(err, c.close()) }()
	do := map[string]func(context.Context, request) (reply, error){
		"listen": c.listen, "meet": c.meet, "used": used, "memory": memory,
		"trip": c.trip, "bandwidth": c.bandwidth, "http": c.requests,
		"hold": c.hold, "write": c.write, "release": c.release, "counts": c.counts,
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var q request
		if err := in.Decode(&q); err != nil {
			return nil // the first process has ended this one
		}
		before := processor.Time()
		r, err := do[q.Do](ctx, q)
		if err != nil {
			r.Error = err.Error()
		}
		r.Used = processor.Time() - before
		if err := out.Encode(r); err != nil {
			return err
		}
	}
}

func (c *child) close() error {
	if c.stack == nil {
		return nil
	}
	_, err := c.release(context.Background(), request{})
	c.writes.Wait()
	if c.conns != nil {
		err = errors.Join(err, c.conns.Close())
		c.mu.Lock()
		for conn := range c.open {
			_ = conn.Close()
		}
		c.mu.Unlock()
		c.web.close()
		c.serves.Wait()
	}
	return errors.Join(err, c.stack.close())
}

func used(context.Context, request) (reply, error) {
	return reply{Value: processor.Time().Seconds()}, nil
}

// memory is the memory of the process.
func memory(context.Context, request) (reply, error) { return reply{Memory: footprint.Measure()}, nil }

// The first byte of a connection says what the server does with it.
const (
	doEcho byte = 'e' // send back each message, of a size that follows in 4 bytes
	doSink byte = 's' // count, and report the number of bytes behind the end of the data
	doWeb  byte = 'w' // serve HTTP
	doStop byte = 'x' // read no more
)

const greeting = 5 // bytes

// listen opens the stack and serves connections. The reply has the address.
func (c *child) listen(_ context.Context, q request) (r reply, err error) {
	if c.stack, err = open(c.o, q.Connections); err != nil {
		return r, err
	}
	l, err := c.stack.listen(q.Address)
	if err != nil {
		return r, err
	}
	c.conns, c.web = l, newQueue(l.Addr())
	c.serves.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			c.mu.Lock()
			c.open[nc] = true
			c.mu.Unlock()
			c.serves.Go(func() { c.serveConn(nc.(conn)) })
		}
	})
	body := make([]byte, 1<<20)
	site := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := 0
		if _, err := fmt.Sscanf(r.URL.Path, "/%d", &n); err != nil || n < 0 || n > len(body) {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(n))
		_, _ = w.Write(body[:n])
	})}
	c.serves.Go(func() { _ = site.Serve(c.web) })
	return reply{Address: l.Addr().String()}, nil
}

// serveConn does what the client wants, until it closes the connection or this process ends.
func (c *child) serveConn(nc conn) {
	hello := make([]byte, greeting)
	if _, err := io.ReadFull(nc, hello); err != nil {
		c.drop(nc)
		return
	}
	switch size := int(binary.BigEndian.Uint32(hello[1:])); hello[0] {
	case doEcho:
		defer c.drop(nc)
		buf := make([]byte, size)
		for {
			if _, err := io.ReadFull(nc, buf); err != nil {
				return
			}
			if _, err := nc.Write(buf); err != nil {
				return
			}
		}
	case doSink:
		defer c.drop(nc)
		n := &atomic.Uint64{}
		c.mu.Lock()
		c.sinks = append(c.sinks, n)
		c.mu.Unlock()
		buf := hello[:1] // as small as can be: idle connections are measured
		for {
			m, err := nc.Read(buf)
			n.Add(uint64(m))
			if len(buf) == 1 {
				buf = make([]byte, size)
			}
			if errors.Is(err, io.EOF) {
				_, _ = nc.Write(binary.BigEndian.AppendUint64(nil, n.Load()))
			}
			if err != nil {
				c.mu.Lock()
				c.sinks = slices.DeleteFunc(c.sinks, func(s *atomic.Uint64) bool { return s == n })
				c.mu.Unlock()
				return
			}
		}
	case doWeb:
		c.web.conns <- nc
	}
}

func (c *child) drop(nc net.Conn) {
	_ = nc.Close()
	c.mu.Lock()
	delete(c.open, nc)
	c.mu.Unlock()
}

// counts are the bytes that each connection has received.
func (c *child) counts(context.Context, request) (r reply, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.sinks {
		r.Values = append(r.Values, float64(n.Load()))
	}
	return r, nil
}

// queue is a listener whose connections another one has accepted.
type queue struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  *sync.Once
}

func newQueue(addr net.Addr) queue {
	return queue{addr, make(chan net.Conn), make(chan struct{}), new(sync.Once)}
}

func (q queue) Addr() net.Addr { return q.addr }
func (q queue) Close() error   { q.close(); return nil }
func (q queue) close()         { q.once.Do(func() { close(q.done) }) }
func (q queue) Accept() (net.Conn, error) {
	select {
	case nc := <-q.conns:
		return nc, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}
