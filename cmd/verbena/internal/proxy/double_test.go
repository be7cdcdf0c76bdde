package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

var errReset = errors.New("reset by the peer")

// double is one end of a connection without a network. A write returns when the other end has
// read the data.
type double struct {
	r         *io.PipeReader
	w         *io.PipeWriter
	peer      *double      // the other end
	linger    atomic.Int64 // of SetLinger; -1: not set
	closed    chan struct{}
	closeOnce sync.Once
	sent      chan struct{} // Wait waits until it is closed; nil: not at all

	closeWrite, close error // what these methods fail with
}

// connected returns the two ends of a connection.
func connected() (a, b *double) {
	ar, bw := io.Pipe()
	br, aw := io.Pipe()
	a, b = &double{r: ar, w: aw, closed: make(chan struct{})}, &double{r: br, w: bw, closed: make(chan struct{})}
	a.peer, b.peer = b, a
	a.linger.Store(-1)
	b.linger.Store(-1)
	return a, b
}

func (d *double) Read(b []byte) (int, error) { return d.r.Read(b) }

// Write of nothing does not wait. It fails if the other end is closed.
func (d *double) Write(b []byte) (int, error) {
	if len(b) > 0 {
		return d.w.Write(b)
	}
	select {
	case <-d.peer.closed:
		return 0, io.ErrClosedPipe
	default:
		return 0, nil
	}
}

func (d *double) CloseWrite() error {
	if d.closeWrite != nil {
		return d.closeWrite
	}
	return d.w.Close()
}

// Close of an end with SetLinger(0) is a reset.
func (d *double) Close() error {
	d.closeOnce.Do(func() { close(d.closed) })
	toReader, toWriter := io.EOF, io.ErrClosedPipe
	if d.linger.Load() == 0 {
		toReader, toWriter = errReset, errReset
	}
	_ = d.w.CloseWithError(toReader)
	_ = d.r.CloseWithError(toWriter)
	return d.close
}

// Wait waits until the last data has been sent.
func (d *double) Wait() {
	if d.sent != nil {
		<-d.sent
	}
}

func (d *double) SetLinger(sec int) error {
	d.linger.Store(int64(sec))
	return nil
}

// reset closes the end as a program that crashes does.
func (d *double) reset() { reset(d) }

func (d *double) LocalAddr() net.Addr              { return doubleAddr{} }
func (d *double) RemoteAddr() net.Addr             { return doubleAddr{} }
func (d *double) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (d *double) SetReadDeadline(time.Time) error  { return errors.ErrUnsupported }
func (d *double) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

type doubleAddr struct{}

func (doubleAddr) Network() string { return "double" }
func (doubleAddr) String() string  { return "double" }

// joined is a pair that runs between a client and a target.
type joined struct {
	client, target         *double // the far ends, which the test has
	nearClient, nearTarget *double // the ends that the pair has
	pair                   *pair
	stop                   context.CancelCauseFunc
	result                 chan error
}

func join(t *testing.T, idle time.Duration) *joined {
	j := &joined{result: make(chan error, 1)}
	j.client, j.nearClient = connected()
	j.nearTarget, j.target = connected()
	j.pair = newPair(j.nearClient, j.nearTarget, idle)
	var ctx context.Context
	ctx, j.stop = context.WithCancelCause(t.Context())
	return j.run(ctx)
}

func (j *joined) run(ctx context.Context) *joined {
	go func() { j.result <- j.pair.run(ctx) }()
	return j
}

// wantReset checks that the pair has reset both of its ends, or has closed them.
func (j *joined) wantReset(t *testing.T, reset bool) {
	t.Helper()
	want := int64(-1)
	if reset {
		want = 0
	}
	for _, d := range []*double{j.nearClient, j.nearTarget} {
		<-d.closed
		assert.Equal(t, want, d.linger.Load())
	}
}
