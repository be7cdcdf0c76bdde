package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/link"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// endpoint is a device with a context, and an engine with the goroutine that drives it.
type endpoint struct {
	// ctx ends with the context of openEndpoint, or when the engine no longer runs, for
	// instance because the device failed.
	ctx    context.Context
	dev    verbs.Device
	engine *pe.Engine
	rdma   *rdma.Connections
	hub    *link.Hub
	stop   context.CancelFunc
	ended  chan struct{} // closed when the engine has ended, with the result err
	err    error
}

// openEndpoint opens a device for at most links links at a time.
func openEndpoint(ctx context.Context, name string, links int, writer bool) (s *endpoint, err error) {
	s = &endpoint{ended: make(chan struct{})}
	if s.dev, err = device.Open(name); err != nil {
		return nil, err
	}
	s.engine = pe.New(pe.Config{})
	defer func() {
		if err != nil {
			err = errors.Join(err, s.engine.Close(), s.dev.Close())
		}
	}()
	if s.rdma, err = rdma.New(s.dev, rdma.Config{Name: "transfer", Engine: s.engine, MaxConnections: links}); err != nil {
		return nil, err
	}
	if s.hub, err = link.NewHub(s.rdma, links, writer); err != nil {
		return nil, err
	}
	if err = s.rdma.Start(); err != nil {
		return nil, err
	}
	// Drive the engine until close, even after ctx has ended: the last messages must go out.
	driven, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	var cancel context.CancelCauseFunc
	s.ctx, cancel = context.WithCancelCause(ctx)
	go func() {
		s.err = s.engine.Run(driven)
		cancel(cmp.Or(s.err, errStopped))
		close(s.ended)
	}()
	return s, nil
}

var errStopped = errors.New("the RDMA context has stopped")

// close stops the engine, and closes it and the device.
func (s *endpoint) close() error {
	s.stop()
	<-s.ended
	err := s.err
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, s.engine.Close(), s.dev.Close())
}

// do runs a function on the engine's goroutine.
func (s *endpoint) do(ctx context.Context, f func() error) error { return await.Func(ctx, s.engine, f) }

// listen accepts connections at an address, as rdma.Connections.Listen takes it, while places has one for
// each, and passes their links to accept, on the engine's goroutine. Whoever serves a link gives its place
// back. stop ends that, and does not wait.
func (s *endpoint) listen(ctx context.Context, addr string, places *places, accept func(*link.Link)) (at netip.AddrPort, stop func(), err error) {
	var l *rdma.Listener
	err = s.do(ctx, func() (err error) {
		l, err = s.rdma.Listen(addr, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
			if !places.take() {
				_ = q.Reject([]byte(busyText))
				return
			}
			conn, err := q.Accept(rdma.AcceptConfig{})
			if err != nil {
				places.giveBack()
				reason := "the receiver cannot accept the connection"
				if errors.Is(err, rdma.ErrFull) {
					reason = busyText
				}
				_ = q.Reject([]byte(reason))
				return
			}
			l, err := s.hub.Open(conn)
			if err != nil {
				places.giveBack()
				_ = conn.Close()
				return
			}
			accept(l)
		}})
		if err == nil {
			at = l.Addr()
		}
		return err
	})
	return at, func() { _ = s.engine.Do(func() { _ = l.Close() }) }, err
}

// places are those for transfers at the same time, at a device or at all.
type places struct {
	shared  *places // if not nil, each place takes also one of these
	mu      sync.Mutex
	free    int
	closed  bool
	running sync.WaitGroup // has those that are taken
}

// take takes a place. It reports false if none is free, or after close.
func (p *places) take() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.free == 0 || p.shared != nil && !p.shared.take() {
		return false
	}
	p.free--
	p.running.Add(1) // never while close waits
	return true
}

func (p *places) giveBack() {
	p.mu.Lock()
	p.free++
	p.mu.Unlock()
	if p.shared != nil {
		p.shared.giveBack()
	}
	p.running.Done()
}

// close has take fail, and waits until all places are given back.
func (p *places) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.running.Wait()
}

// busyText is the reason with which a receiver rejects a transfer when it has its maximum
// number.
const busyText = "the receiver has as many transfers as it takes"

// dial connects to an address, and returns when the connection is Ready. It keeps trying for
// patience. With a patience of zero, it fails at the first rejection.
func (s *endpoint) dial(ctx context.Context, addr string, patience time.Duration) (*link.Link, error) {
	deadline := time.Now().Add(patience)
	for {
		l, err := s.dialOnce(ctx, addr, time.Until(deadline))
		if err == nil {
			return l, nil
		}
		busy := rejection(err) == busyText
		if busy {
			err = fmt.Errorf("%s: %w", busyText, err)
		}
		if !busy || time.Now().After(deadline) || ctx.Err() != nil {
			return nil, &exitError{code: exitConnection, err: err}
		}
		// rdma.Connections.Dial does not try again after a rejection.
		select {
		case <-time.After(busyInterval):
		case <-ctx.Done():
		}
	}
}

func (s *endpoint) dialOnce(ctx context.Context, addr string, patience time.Duration) (*link.Link, error) {
	cfg := rdma.DialConfig{Timeout: patience}
	if patience <= 0 {
		cfg.Once, cfg.Timeout = true, dialTimeout
	}
	var l *link.Link
	err := s.do(ctx, func() error {
		conn, err := s.rdma.Dial(addr, cfg)
		if err != nil {
			return err
		}
		if l, err = s.hub.Open(conn); err != nil {
			return errors.Join(err, conn.Close())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := l.Ready(ctx); err != nil {
		closeLink(l)
		return nil, err
	}
	return l, nil
}

// busyInterval is the time before the next attempt to connect to a busy receiver.
const busyInterval = 500 * time.Millisecond

// dialTimeout is how long the peer may take to answer.
const dialTimeout = 15 * time.Second

// rejection returns busyText if that is why the peer's program rejected the connection, or
// else nothing.
func rejection(err error) string {
	var e *verbs.CMError
	if errors.As(err, &e) && string(e.PrivateData[:min(len(e.PrivateData), len(busyText))]) == busyText {
		return busyText
	}
	return ""
}

// closeLink closes a link. It waits for a limited time.
func closeLink(l *link.Link) {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	_ = l.Close(ctx) // the endpoint closes what is left
}
