package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// stream is a connection that can end its sending direction alone.
type stream interface {
	net.Conn
	CloseWrite() error
}

// Each direction of a connection has one buffer. It starts small, since many connections never
// carry much, and doubles when a read fills it.
const smallBuffer, largeBuffer = 4 << 10, 64 << 10

// lingering is how long the data that a side sent before it failed may take to the other side. A
// server that refuses a request sends its reason, and closes without reading the rest.
const lingering = 5 * time.Second

// side is one of the two connections of a pair.
type side struct {
	name string // for errors
	stream
}

// pair joins a client with its target, until both directions have ended.
type pair struct {
	client, target side
	idle           time.Duration // 0: no limit
	up, down       atomic.Int64  // bytes from the client to the target, and back
	start          time.Time
	last           atomic.Int64 // when data moved, in nanoseconds since start
}

func newPair(client, target stream, idle time.Duration) *pair {
	return &pair{client: side{"the client", client}, target: side{"the target", target}, idle: idle, start: time.Now()}
}

// run moves data until both directions have ended, or the first failure, which it returns. If
// ctx ends, the pair fails with its cause. Both sides are closed then. After a failure they are
// reset: otherwise a peer would take the data that it has got for all.
func (p *pair) run(ctx context.Context) error {
	ends := make(chan outcome, 2)
	go func() { ends <- p.copy(p.target, p.client, &p.up) }()
	go func() { ends <- p.copy(p.client, p.target, &p.down) }()
	left, err := p.supervise(ctx, ends)
	if err != nil {
		reset(p.client.stream)
		reset(p.target.stream)
	} else {
		err = errors.Join(p.client.close(), p.target.close())
	}
	for range left {
		<-ends
	}
	return err
}

// outcome is how one direction ended. The other one lingers if it may still deliver what its sender
// sent before it failed.
type outcome struct {
	err     error
	lingers bool
}

// supervise returns when both directions have ended, or when the pair has failed and nothing
// more can be delivered. left is the number of directions that have not ended.
func (p *pair) supervise(ctx context.Context, ends <-chan outcome) (left int, err error) {
	var idle, linger <-chan time.Time
	if p.idle > 0 {
		idle = time.After(p.idle)
	}
	for left = 2; left > 0; {
		select {
		case e := <-ends:
			left--
			if err == nil {
				err = e.err
			}
			if e.err != nil && !e.lingers {
				return left, err
			}
			if e.lingers {
				linger = time.After(lingering)
			}
		case <-ctx.Done():
			return left, cmp.Or(err, context.Cause(ctx))
		case <-linger:
			return left, err
		case <-idle:
			quiet := time.Since(p.start) - time.Duration(p.last.Load())
			if quiet >= p.idle {
				return left, cmp.Or(err, fmt.Errorf("no data in either direction for %v, the limit of -idle", p.idle))
			}
			idle = time.After(p.idle - quiet)
		}
	}
	return 0, err
}

// copy moves data in one direction, until its end or a failure. A write returns when the
// receiver has taken the data, so a slow receiver stops the sender.
func (p *pair) copy(to, from side, count *atomic.Int64) outcome {
	buf := make([]byte, smallBuffer)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			p.moved()
			written, err := to.Write(buf[:n])
			count.Add(int64(written))
			if err != nil {
				return outcome{fmt.Errorf("write to %s: %w", to.name, err), true}
			}
			p.moved()
		}
		switch {
		case errors.Is(err, io.EOF):
			if err := to.CloseWrite(); err != nil {
				return outcome{fmt.Errorf("end the data to %s: %w", to.name, err), true}
			}
			return outcome{}
		case err != nil:
			return outcome{fmt.Errorf("read from %s: %w", from.name, err), false}
		case n == len(buf) && n < largeBuffer:
			buf = make([]byte, 2*n)
		}
	}
}

func (p *pair) moved() { p.last.Store(int64(time.Since(p.start))) }

func (s side) close() error {
	if err := s.Close(); err != nil {
		return fmt.Errorf("close the connection of %s: %w", s.name, err)
	}
	return nil
}

// reset closes a connection that has failed. Its peer gets an error, not the end of the data,
// where the network can say so.
func reset(c stream) {
	if tcp, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close() // it is given up
}
