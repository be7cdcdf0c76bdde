package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/rsocket"
)

// stream is a connection that can end its sending direction alone.
type stream interface {
	net.Conn
	CloseWrite() error
}

// Each direction between two connections of TCP has one buffer. It starts small, since many connections never
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
	ask            time.Duration // how often a side that has ended its data is asked whether it takes data
	up, down       atomic.Int64  // bytes from the client to the target, and back
	start          time.Time
	last           atomic.Int64 // when data moved, in nanoseconds since start
}

func newPair(client, target stream, idle time.Duration) *pair {
	return &pair{client: side{"the client", client}, target: side{"the target", target}, idle: idle, ask: 5 * time.Second, start: time.Now()}
}

// run moves data. It ends when both directions have ended, when a side that has ended its data has
// also closed, or at the first failure, which it returns. If ctx ends, the pair fails with its cause.
// Both sides are closed then. After a failure they are reset: otherwise a peer would take the data
// that it has got for all, and a client would take the data that it has sent for delivered.
func (p *pair) run(ctx context.Context) error {
	ends, gone, over := make(chan outcome, 2), make(chan side, 2), make(chan struct{})
	var work sync.WaitGroup
	move := func(to, from side, count *atomic.Int64) {
		end := p.copy(to, from, count)
		ends <- end
		if end.err == nil && from.awaitGone(p.ask, over) {
			gone <- from
		}
	}
	work.Go(func() { move(p.target, p.client, &p.up) })
	work.Go(func() { move(p.client, p.target, &p.down) })
	err := p.supervise(ctx, ends, gone)
	close(over)
	if err != nil {
		reset(p.client.stream)
		reset(p.target.stream)
	} else {
		err = errors.Join(p.client.close(), p.target.close())
	}
	work.Wait()
	return err
}

// outcome is how one direction ended. The other one lingers if it may still deliver what its sender
// sent before it failed.
type outcome struct {
	err     error
	lingers bool
}

// errTargetGone ends a pair whose target has closed while the client could still send.
var errTargetGone = errors.New("the target closed its connection before the client had ended its data, so some of that may be lost")

// supervise returns when both directions have ended, when one has and its sender is gone, or when the
// pair has failed and nothing more can be delivered.
func (p *pair) supervise(ctx context.Context, ends <-chan outcome, gone <-chan side) (err error) {
	var idle, linger <-chan time.Time
	if p.idle > 0 {
		idle = time.After(p.idle)
	}
	for left := 2; left > 0; {
		select {
		case e := <-ends:
			left--
			if err == nil {
				err = e.err
			}
			if e.err != nil && !e.lingers {
				return err
			}
			if e.lingers {
				linger = time.After(lingering)
			}
		case <-ctx.Done():
			return cmp.Or(err, context.Cause(ctx))
		case <-linger:
			return err
		case from := <-gone:
			switch {
			case err != nil:
			case from == p.client:
				return nil // it wants no answer
			default:
				err, linger = errTargetGone, time.After(lingering)
			}
		case <-idle:
			quiet := time.Since(p.start) - time.Duration(p.last.Load())
			if quiet >= p.idle {
				return cmp.Or(err, fmt.Errorf("no data in either direction for %v, the limit of -idle", p.idle))
			}
			idle = time.After(p.idle - quiet)
		}
	}
	return err
}

// copy moves data in one direction, until its end or a failure. A write returns when the
// receiver has taken the data, so a slow receiver stops the sender.
func (p *pair) copy(to, from side, count *atomic.Int64) outcome {
	if to.isRDMA() || from.isRDMA() {
		return p.copyDirectly(to, from, count)
	}
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
			return p.end(to)
		case err != nil:
			return outcome{fmt.Errorf("read from %s: %w", from.name, err), false}
		case n == len(buf) && n < largeBuffer:
			buf = make([]byte, 2*n)
		}
	}
}

func (s side) isRDMA() bool { _, ok := s.stream.(*rsocket.Conn); return ok }

// copyDirectly is copy where one side is a connection of rsockets: it reads into its memory and writes
// from its memory, so there is no buffer between.
func (p *pair) copyDirectly(to, from side, count *atomic.Int64) outcome {
	for {
		if p.idle > 0 { // it ends from time to time, to note that data has moved
			_ = from.SetReadDeadline(time.Now().Add(p.idle / 8)) // Read fails if this does
		}
		n, err := io.Copy(to.stream, from.stream)
		if count.Add(n); n > 0 {
			p.moved()
		}
		var failed *net.OpError
		switch {
		case err == nil:
			return p.end(to)
		case p.idle > 0 && errors.Is(err, os.ErrDeadlineExceeded):
		case errors.As(err, &failed) && strings.HasSuffix(failed.Op, "read"):
			return outcome{fmt.Errorf("read from %s: %w", from.name, err), false}
		default:
			return outcome{fmt.Errorf("write to %s: %w", to.name, err), true}
		}
	}
}

// end ends the data to a side.
func (p *pair) end(to side) outcome {
	if err := to.CloseWrite(); err != nil {
		return outcome{fmt.Errorf("end the data to %s: %w", to.name, err), true}
	}
	return outcome{}
}

func (p *pair) moved() { p.last.Store(int64(time.Since(p.start))) }

// awaitGone waits until a side that has ended its data takes no more data either, and reports true;
// or until over is closed. Only a write finds that out: the side may have closed its connection, as
// clients do that give up, or may wait for an answer.
func (s side) awaitGone(interval time.Duration, over <-chan struct{}) bool {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return false
		case <-tick.C:
			if _, err := s.Write(nil); err != nil {
				return true
			}
		}
	}
}

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
