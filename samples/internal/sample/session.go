package sample

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// How long the peer may take to connect, if no flag says so. Only this limit shows that the
// peer has ended after the exchange of descriptors and before the connection.
const (
	defaultConnectTimeout = 6 * time.Second
	// manualConnectTimeout is for descriptors that a person may copy: the peer gets ours later
	// than we get its own.
	manualConnectTimeout = time.Minute
)

// Session is one run of a program: the values of its flags, and its peer.
type Session struct {
	Device      string
	GIDIndex    *int // nil: not given
	Connections int
	Operands    []string // the arguments after the flags
	// ConnectTimeout is how long the peer may take to connect, once we have its descriptor.
	ConnectTimeout time.Duration
	Log            zerolog.Logger
	// Peer is the other program of the pair; nil: there is none, or several.
	Peer *oob.Peer

	clients  *oob.Listener // of a server of several clients; nil: the program has a Peer
	reports  bool          // the peer reports its outcome
	finished bool          // Finish has been called
	program  Program
	files    stdio
	text     string
	timeout  time.Duration
	running  atomic.Bool // the context is Running, or was
}

// Print writes a line of data to standard output.
func (s *Session) Print(format string, args ...any) {
	_, _ = fmt.Fprintf(s.files.out, format+"\n", args...)
}

// Say prints a line about what the program waits for, for the person who runs it.
func (s *Session) Say(format string, args ...any) {
	_, _ = fmt.Fprintf(s.files.err, s.program.Name+": "+format+"\n", args...)
}

// Check prints got with the format, or fails if got is not want.
func (s *Session) Check(got, want, format string) error {
	if got != want {
		return fmt.Errorf("received %.80q, want %q", got, want)
	}
	s.Print(format, got)
	return nil
}

// LogState logs the new state of the context.
func (s *Session) LogState(state pe.State) {
	s.Log.Info().Msgf("the context is %v", state)
	if state == pe.Running {
		s.running.Store(true)
	}
}

// awaited says what the program waits for once it has the peer's descriptor.
func (p *Program) awaited() string {
	if p.Transport == verbs.RC {
		return "the connection to"
	}
	return "a message from"
}

// waitedFor says what the program was waiting for when the time-out expired.
func (s *Session) waitedFor() string {
	switch {
	case s.Peer != nil && s.Peer.Waiting() != "":
		return " while waiting for " + s.Peer.Waiting()
	case s.running.Load():
		return " while waiting for the tasks to complete"
	}
	return ""
}

// Setup is a device, an engine and a context, for programs that do not demonstrate how to make
// these.
type Setup struct {
	Device verbs.Device
	Engine *pe.Engine
	RDMA   *rdma.Connections
}

// Open makes a setup on the device and address that the flags select.
func (s *Session) Open(cfg rdma.Config) (*Setup, error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return nil, err
	}
	u := &Setup{Device: dev, Engine: pe.New(pe.Config{Log: s.Log})}
	cfg.Engine, cfg.Path.GIDIndex = u.Engine, s.GIDIndex
	if u.RDMA, err = rdma.New(dev, cfg); err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return u, nil
}

// Close closes the context, the engine, the device and its memory.
func (u *Setup) Close() error { return errors.Join(u.Engine.Close(), u.Device.Close()) }
