package oob

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob/internal/greeting"
	"github.com/verbena-rdma/verbena/rdma"
)

// maxBundle is the length of the longest bundle, in bytes.
const maxBundle = descriptor.MaxPayload + 14

// landing is the memory of one exchange by connection manager: what the peer writes to, and
// what is written to the peer's. It belongs to the engine's goroutine.
type landing struct {
	r       *rdma.Connections
	in, out *mmap.Map // out is nil until something is sent
	key     uint32
	size    int
	changed func() // called when the peer may have written

	cancel  func()
	pending atomic.Bool // changed is about to be called
	timer   *time.Timer // where the device does not notify; nil: it does
	pause   time.Duration
	writing bool // out, which the device may have to send again
	closed  bool
}

const (
	shortestPoll = time.Millisecond
	longestPoll  = 20 * time.Millisecond
)

// newLanding makes room for size bytes behind the words.
func newLanding(r *rdma.Connections, size int, changed func()) (*landing, error) {
	l := &landing{r: r, size: size, changed: changed, pause: shortestPoll}
	var err error
	if l.in, err = mmap.New(r.Device(), mmap.Config{
		Size: greeting.Words + size, Permissions: mmap.LocalReadWrite | mmap.RemoteWrite, PD: r.PD(),
	}); err != nil {
		return nil, err
	}
	if l.key, err = l.in.ExportKey(r.PD()); err != nil {
		return nil, errors.Join(err, l.in.Close())
	}
	cancel, complete, err := l.in.Watch(0, greeting.Words, l.wake)
	if err != nil {
		return nil, errors.Join(err, l.in.Close())
	}
	l.cancel = cancel
	if !complete {
		l.timer = time.AfterFunc(l.pause, l.wake)
	}
	return l, nil
}

// wake is called by the device, or the timer, on any goroutine.
func (l *landing) wake() {
	if !l.pending.Swap(true) {
		_ = l.r.Engine().Do(l.look) // fails only after the end of the program
	}
}

func (l *landing) look() {
	l.pending.Store(false)
	if l.closed {
		return
	}
	if l.timer != nil {
		l.pause = min(l.pause+l.pause/16, longestPoll)
		l.timer.Reset(l.pause)
	}
	l.changed()
}

// place is what the peer is told.
func (l *landing) place() greeting.Landing {
	return greeting.Landing{Addr: l.in.Addr(), RKey: l.key, Size: uint32(l.size)}
}

// word is the word at an offset. The device writes it in one piece: it has 8 bytes, aligned.
func (l *landing) word(off int) (greeting.Word, error) {
	return greeting.ReadWord([greeting.WordSize]byte(l.in.Bytes()[off:]))
}

// landed is a copy of what has landed, which the peer may still be writing to.
func (l *landing) landed(w greeting.Word) ([]byte, error) {
	if w.Length > uint32(l.size) {
		return nil, fmt.Errorf("%w: the peer claims to have written %d bytes to a place for %d", descriptor.ErrTooBig, w.Length, l.size)
	}
	return append([]byte(nil), l.in.Bytes()[greeting.Words:][:w.Length]...), nil
}

// send writes content to the peer's landing, and then the word for it. done is called when
// the peer's device has taken both, or not.
func (l *landing) send(conn *rdma.Connection, to greeting.Landing, kind greeting.WordKind, content []byte, done func(err error)) error {
	if len(content) > int(to.Size) {
		return fmt.Errorf("%w: %d bytes are to be sent, and the peer has room for %d", descriptor.ErrTooBig, len(content), to.Size)
	}
	var err error
	if l.out, err = mmap.New(l.r.Device(), mmap.Config{Size: greeting.Words + len(content), Permissions: mmap.LocalReadWrite, PD: l.r.PD()}); err != nil {
		return err
	}
	copy(l.out.Bytes()[greeting.Words:], content)
	greeting.Word{Kind: kind, Length: uint32(len(content))}.Encode(l.out.Bytes()[greeting.AnswerWord:])
	greeting.Word{Kind: greeting.Confirmed}.Encode(l.out.Bytes()[greeting.ConfirmedWord:])
	return l.write(conn, greeting.Words, len(content), to, func(err error) {
		if err == nil && l.closed {
			err = ErrClosed
		}
		if err == nil {
			err = l.write(conn, greeting.AnswerWord, greeting.WordSize, to, done)
		}
		if err != nil {
			done(err)
		}
	})
}

// write writes a part of out to the same place of the peer's. out stays until the peer's device
// has acknowledged it: the peer may have read it, and answered, before.
func (l *landing) write(conn *rdma.Connection, off, n int, to greeting.Landing, done func(err error)) error {
	err := conn.WriteHeld(l.out, off, n, to.Addr+uint64(off), to.RKey, func(err error) {
		l.writing = false
		done(err)
		l.closeOut()
	})
	l.writing = err == nil
	return err
}

// confirm writes the word that says that the peer's offer is taken, after send, and closes
// the landing when it is written.
func (l *landing) confirm(conn *rdma.Connection, to greeting.Landing) error {
	return l.write(conn, greeting.ConfirmedWord, greeting.WordSize, to, func(error) { l.close() })
}

// close gives the memory back. The peer's writes are refused from now on.
func (l *landing) close() {
	if l == nil || l.closed {
		return
	}
	l.closed = true
	l.cancel()
	if l.timer != nil {
		l.timer.Stop()
	}
	_ = l.in.Close() // nothing of the program's refers to it
	l.closeOut()
}

// closeOut gives out back when the landing is closed, and nothing of it is under way.
func (l *landing) closeOut() {
	if l.closed && !l.writing && l.out != nil {
		_ = l.out.Close()
	}
}
