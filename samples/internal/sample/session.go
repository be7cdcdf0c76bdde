package sample

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// How long the peer may take to connect, if no flag says so. It may end between the
// exchange of descriptors and the connection, which shows in no other way.
const (
	defaultConnectTimeout = 6 * time.Second
	// byHandConnectTimeout is for descriptors that a person may copy: the peer gets
	// ours later than we its own.
	byHandConnectTimeout = time.Minute
)

// Session is one run of a program: what its flags say, and the way to its peer.
type Session struct {
	Device      string
	GIDIndex    *int      // nil: not given
	MTU         verbs.MTU // zero: not given
	Connections int
	SGE         int // buffers that the data of one task is scattered over
	// ConnectTimeout is how long the peer may take to connect, once we have its
	// descriptor.
	ConnectTimeout time.Duration
	AckTimeout     time.Duration // zero: not given
	Log            zerolog.Logger

	program Program
	files   stdio
	text    string
	size    int
	sized   bool // the size was given, and may be zero
	timeout time.Duration
	channel channel // nil: the program is alone

	ctx     context.Context // of the functions that run beside the engine
	cancel  context.CancelFunc
	beside  sync.WaitGroup
	waiting atomic.Pointer[string]
}

// Descriptors is what the two programs of a pair send each other.
type Descriptors struct {
	Connections [][]byte // in the order in which they are to be connected
	Memory      []byte   // nil: none
	Event       []byte   // of a sync event; nil: none
}

// Print writes a line of data to standard output.
func (s *Session) Print(format string, args ...any) {
	_, _ = fmt.Fprintf(s.files.out, format+"\n", args...)
}

// Out is standard output.
func (s *Session) Out() io.Writer { return s.files.out }

// Exchange gives the peer our descriptors and waits for its own, without blocking
// the engine: then runs on the engine's goroutine. It does not run
// if the program's context ends first; Engine.Run returns then.
func (s *Session) Exchange(engine *pe.Engine, ours Descriptors, then func(theirs Descriptors, err error)) {
	s.waitFor(fmt.Sprintf("the descriptors of %s, through %v", s.program.Peer, s.channel))
	s.aside(engine, func() func() {
		theirs, err := s.channel.exchange(s.ctx, ours)
		if err == nil {
			err = s.check(ours, theirs)
		}
		return func() {
			if err == nil {
				s.waitFor("the connection to " + s.program.Peer)
			}
			then(theirs, err)
		}
	})
}

// PeerDone waits for the peer's program to end; then runs like that of Exchange.
// Its error is not nil if the peer has failed.
func (s *Session) PeerDone(engine *pe.Engine, then func(err error)) {
	s.waitFor(fmt.Sprintf("%s to report its end through %v", s.program.Peer, s.channel))
	s.aside(engine, func() func() {
		err := s.channel.peerDone(s.ctx)
		return func() { then(err) }
	})
}

// outcomeTimeout is how long a peer that has closed its connection has to report
// whether it succeeded.
const outcomeTimeout = 5 * time.Second

// EndWithPeer has the context end when a connection fails, and when the peer has
// closed one and does not say how it ended, for PeerDone.
func (s *Session) EndWithPeer(r *rdma.Context) {
	r.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, err error) {
		switch {
		case state == rdma.Failed:
			r.Fail(err)
		case errors.Is(err, rdma.ErrPeerClosed):
			s.aside(r.Engine(), func() func() {
				select {
				case <-s.ctx.Done():
				case <-time.After(outcomeTimeout):
				}
				return func() { r.Fail(fmt.Errorf("%s did not say whether it succeeded: %w", s.program.Peer, err)) }
			})
		}
	})
}

// aside runs f on a goroutine of its own and what it returns on the engine's.
func (s *Session) aside(engine *pe.Engine, f func() func()) {
	s.beside.Go(func() {
		then := f()
		if s.ctx.Err() == nil {
			_ = engine.Do(then) // fails only after the end of the program
		}
	})
}

// check refuses descriptors that cannot be the counterpart of ours.
func (s *Session) check(ours, theirs Descriptors) error {
	if a, b := len(ours.Connections), len(theirs.Connections); a != b {
		return fmt.Errorf("%s offers %d connections, this program %d: give both the same number", s.program.Peer, b, a)
	}
	for _, m := range []Memory{ImportsMemory, ImportsEvent} {
		switch sent, wanted := *theirs.resource(m) != nil, s.program.Memory == m; {
		case wanted && !sent:
			return fmt.Errorf("%s sent no descriptor of its %v", s.program.Peer, m)
		case sent && !wanted:
			return fmt.Errorf("%s sent a descriptor of its %v, which nothing here needs", s.program.Peer, m)
		}
	}
	return nil
}

// Entered logs the state that the context is in now.
func (s *Session) Entered(state pe.State) {
	s.Log.Info().Msgf("the context is %v", state)
	if state == pe.Running {
		tasks := "the tasks to complete"
		s.waiting.Store(&tasks)
	}
}

// waitFor notes what comes next, for the log and in case time is up.
func (s *Session) waitFor(what string) {
	s.waiting.Store(&what)
	s.Log.Info().Msg("waiting for " + what)
}

func (s *Session) waitedFor() string {
	if what := s.waiting.Load(); what != nil {
		return " while waiting for " + *what
	}
	return ""
}

func (s *Session) begin(ctx context.Context) { s.ctx, s.cancel = context.WithCancel(ctx) }

// end reports to the peer how the program ended, and leaves nothing behind.
func (s *Session) end(ok bool) error {
	s.cancel()
	s.beside.Wait()
	if s.channel == nil {
		return nil
	}
	return s.channel.close(ok)
}
