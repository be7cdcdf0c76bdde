package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

// limits are the flags of the same names.
type limits struct {
	max     int
	connect time.Duration
	idle    time.Duration
	grace   time.Duration
}

// server joins each connection that a listener accepts with one to the target.
type server struct {
	limits
	listener net.Listener // of connections that implement stream
	dial     func(context.Context) (stream, error)
	target   string // for messages
	log      zerolog.Logger

	open      sync.WaitGroup
	places    chan struct{} // semaphore: open connections
	lingering chan struct{} // semaphore: closed connections whose last data is still being sent

	accepted int64 // connections; of the accepting goroutine
	failed   atomic.Int64
	up, down atomic.Int64 // bytes
}

var errGraceOver = errors.New("the proxy ended, and the time of -grace was over")

// serve accepts connections until ctx ends or the listener fails. It returns when no connection
// is open, which takes no longer than the grace period.
func (s *server) serve(ctx context.Context) error {
	unlisten := context.AfterFunc(ctx, func() { _ = s.listener.Close() })
	defer unlisten()
	connections, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	s.places, s.lingering = make(chan struct{}, s.max), make(chan struct{}, lingeringPlaces(s.max))
	err := s.accept(ctx, connections)
	_ = s.listener.Close()

	if n := len(s.places); n > 0 {
		s.log.Info().Int("open", n).Msgf("ending: open connections have %v (-grace); interrupt again to end at once", s.grace)
	}
	timer := time.AfterFunc(s.grace, func() { end(errGraceOver) })
	s.open.Wait()
	timer.Stop()
	s.log.Info().Int64("connections", s.accepted).Int64("failed", s.failed.Load()).
		Int64("bytes_to_target", s.up.Load()).Int64("bytes_to_clients", s.down.Load()).Msg("ended")
	return err
}

// accept accepts connections until ctx ends, which is no error. At the limit it stops to
// accept: further connections wait in the listener's queue.
func (s *server) accept(ctx, connections context.Context) error {
	full := false
	for pause := firstPause; ; {
		select {
		case s.places <- struct{}{}:
		default:
			if !full {
				full = true // once, since a busy proxy reaches the limit again and again
				s.log.Warn().Msgf("%d connections are open, the limit of -max: further ones wait", s.max)
			}
			select {
			case s.places <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
		}
		c, err := s.listener.Accept()
		if err == nil {
			pause = firstPause
			s.accepted++
			number := s.accepted
			s.open.Go(func() {
				client := c.(stream)
				target := s.handle(connections, number, client)
				s.linger(client, target)
			})
			continue
		}
		<-s.places
		switch {
		case ctx.Err() != nil:
			return nil
		case !temporary(err):
			return fmt.Errorf("accept connections: %w", err)
		}
		s.log.Warn().Err(err).Msgf("cannot accept a connection; trying again in %v", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		pause = min(2*pause, lastPause)
	}
}

// The pause after a failed Accept doubles from the first to the last.
const firstPause, lastPause = 5 * time.Millisecond, time.Second

// temporary reports whether Accept may succeed later: the connection was gone already, or the
// system lacks files or memory for now.
func temporary(err error) bool {
	for _, e := range []error{syscall.ECONNABORTED, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// lingeringPlaces is how many connections at a time can send their last data without a place among
// the open ones. While there are more, as with peers that no longer answer, they keep that place.
func lingeringPlaces(max int) int { return min(max, 1024) }

// linger frees the place of a connection. It returns when the last data of both ends has been sent:
// until then the stack of rsockets counts them. target is nil if there is none.
func (s *server) linger(client, target stream) {
	s.lingering <- struct{}{}
	<-s.places
	for _, c := range []stream{client, target} {
		if c, ok := c.(interface{ Wait() }); ok { // of TCP the system takes care
			c.Wait()
		}
	}
	<-s.lingering
}

// handle joins a client with a new connection to the target, until both are closed. It returns the
// target, or nil if it could not be reached.
func (s *server) handle(ctx context.Context, number int64, client stream) (target stream) {
	log := s.log.With().Int64("connection", number).Stringer("client", client.RemoteAddr()).Logger()
	target, err := s.reach(ctx)
	if err != nil {
		reset(client)
		s.failed.Add(1)
		log.Error().Err(err).Msg("no connection to the target; the client's was reset")
		return nil
	}
	log.Debug().Msg("connected")
	p := newPair(client, target, s.idle)
	err = p.run(ctx)
	s.up.Add(p.up.Load())
	s.down.Add(p.down.Load())
	log = log.With().Int64("bytes_to_target", p.up.Load()).Int64("bytes_to_client", p.down.Load()).Logger()
	if err != nil {
		s.failed.Add(1)
		log.Error().Err(err).Msg("failed; both connections were reset")
		return target
	}
	log.Debug().Msg("ended")
	return target
}

// reach connects to the target.
func (s *server) reach(ctx context.Context) (stream, error) {
	limited, cancel := context.WithTimeout(ctx, s.connect)
	defer cancel()
	target, err := s.dial(limited)
	switch {
	case err == nil:
		return target, nil
	case errors.Is(err, errLoop):
		return nil, err
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case limited.Err() != nil:
		return nil, fmt.Errorf("connect to %s: not within %v (-t): %w", s.target, s.connect, err)
	}
	return nil, fmt.Errorf("connect to %s: %w; is its program running?", s.target, err)
}
