package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/link"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
	"github.com/verbena-rdma/verbena/mmap"
)

// ReceiverConfig defines what a Receiver accepts, and from whom.
type ReceiverConfig struct {
	Secret   []byte // nil: none is needed, and only senders on this machine are accepted
	Insecure bool   // without a secret, accept senders on other machines, too
	Key      string // sent to senders in return for their ID; empty: a random one for each
	MaxSize  uint64 // of a file; zero: limited by the disk only
	Slots    int    // of each window, each of proto.BlockSize bytes; zero: DefaultSlots
	Sync     bool   // flush each file to the disk before reporting it
}

// DefaultSlots is the number of slots of a window if ReceiverConfig has none.
const DefaultSlots = 16

// Receiver receives transfers into one folder, any number at a time.
type Receiver struct {
	cfg  ReceiverConfig
	dest *tree.Dest

	mu           sync.Mutex
	reservations map[string]*reservation // entries that are being received, by PartName
	sessions     map[[16]byte]*incoming  // by transfer
}

// reservation records which session receives an entry.
type reservation struct {
	session  *incoming
	released chan struct{} // closed when the session has released the entry
}

// NewReceiver makes a receiver.
func NewReceiver(dest *tree.Dest, cfg ReceiverConfig) *Receiver {
	if cfg.Slots == 0 {
		cfg.Slots = DefaultSlots
	}
	return &Receiver{cfg: cfg, dest: dest, reservations: map[string]*reservation{}, sessions: map[[16]byte]*incoming{}}
}

// Serve receives over a link until the transfer is complete, the connection has ended, or ctx
// ends. It does not close the link.
func (r *Receiver) Serve(ctx context.Context, l *link.Link, events Events) (Summary, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &incoming{r: r, l: l, events: events, cancel: cancel, ended: make(chan struct{}),
		waitLeft: busyTimeout, files: map[uint32]*file{}}
	err := s.run(ctx)
	if err != nil {
		refuse(l, err)
	}
	return s.sum, err
}

// incoming is a Receiver's end of one connection. One goroutine handles the sender's messages
// in order, and stores the data.
type incoming struct {
	r      *Receiver
	l      *link.Link
	events Events
	cancel context.CancelCauseFunc
	ended  chan struct{}
	window *mmap.Map
	sum    Summary

	files    map[uint32]*file // wanted, with data still to come
	begun    int              // of these, files of several blocks that have begun
	next     uint32           // the next index
	waitLeft time.Duration    // the unused part of busyTimeout
}

func (s *incoming) run(ctx context.Context) error {
	hello, mac, err := s.r.handshake(ctx, s.l)
	if err != nil {
		return err
	}
	s.sum.Transfer = hello.Transfer
	if err := s.replace(ctx, hello.Transfer); err != nil {
		return err
	}
	defer s.unregister(hello.Transfer)
	dev := s.l.Device()
	if s.window, err = mmap.Alloc(dev, s.r.cfg.Slots*proto.BlockSize, mmap.LocalReadWrite|mmap.RemoteWrite); err != nil {
		return err
	}
	defer s.window.Close()
	key, err := s.window.ExportKey(dev.DefaultPD())
	if err != nil {
		return err
	}
	welcome := &proto.Welcome{MAC: mac, Addr: s.window.Addr(), Length: uint32(s.window.Len()), RKey: key}
	if err := s.l.Send(ctx, welcome); err != nil {
		return err
	}
	var watcher sync.WaitGroup
	watched, stop := context.WithCancel(ctx)
	watcher.Go(func() { watch(watched, s.l, func(err error) { s.cancel(err) }) })
	err = s.loop(ctx)
	stop()
	watcher.Wait()
	for _, f := range s.files {
		f.close()
		s.r.release(f)
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // the first error
	}
	return err
}

// replace makes s the session of a transfer. An earlier session of the same run of the sender,
// which has connected again, is ended first.
func (s *incoming) replace(ctx context.Context, transfer [16]byte) error {
	for {
		s.r.mu.Lock()
		old := s.r.sessions[transfer]
		if old == nil {
			s.r.sessions[transfer] = s
			s.r.mu.Unlock()
			return nil
		}
		s.r.mu.Unlock()
		old.cancel(fmt.Errorf("%w: the sender has connected again", link.ErrBroken))
		select {
		case <-old.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Receives reports whether a transfer has a connection that has completed its handshake.
func (r *Receiver) Receives(transfer [16]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions[transfer] != nil
}

func (s *incoming) unregister(transfer [16]byte) {
	s.r.mu.Lock()
	delete(s.r.sessions, transfer)
	s.r.mu.Unlock()
	close(s.ended)
}

// loop handles the sender's messages until the sender closes the connection after the end.
func (s *incoming) loop(ctx context.Context) error {
	over := false // the verdict has been sent
	for {
		m, err := next(ctx, s.l)
		if err != nil {
			if s.sum.Complete && errors.Is(err, link.ErrBroken) {
				return nil
			}
			return err
		}
		switch m := m.(type) {
		case *proto.Entries:
			err = s.plan(ctx, m)
		case *proto.Block:
			err = s.block(ctx, m)
		case *proto.Discard:
			err = s.discard(ctx, m)
		case *proto.Dirs:
			err = s.dirs(ctx, m)
		case *proto.Text:
			if over = true; s.next > 0 || s.sum.Text {
				return faultf(proto.BadProtocol, "the sender sent an unexpected text")
			}
			s.sum.Text = true
			if err := s.events.Text(m.Text); err != nil {
				return faultf(tree.CodeOf(err), "the receiver cannot print the message: %v", tree.Reason(err))
			}
			err = s.l.Send(ctx, &proto.Verdict{Good: true})
		case *proto.End:
			over = true
			err = s.end(ctx, m)
		case *proto.ID:
			if !over || s.sum.Complete {
				return faultf(proto.BadProtocol, "the sender sent its ID before the end")
			}
			s.sum.ID, s.sum.Key, s.sum.Complete = m.Text, s.key(), true
			err = s.l.Send(ctx, &proto.Key{Text: s.sum.Key})
		default:
			err = faultf(proto.BadProtocol, "the sender sent a %T, which only the receiver may send", m)
		}
		if err != nil {
			return err
		}
	}
}

func (s *incoming) key() string {
	if s.r.cfg.Key != "" {
		return s.r.cfg.Key
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func (s *incoming) end(ctx context.Context, m *proto.End) error {
	if m.Entries != s.next || len(s.files) > 0 {
		return faultf(proto.BadProtocol, "the sender ended after %d entries, but announced %d, of which %d are not complete", m.Entries, s.next, len(s.files))
	}
	return s.l.Send(ctx, &proto.Verdict{Good: s.sum.Failed == 0, Stored: uint32(s.sum.Entries), Failed: uint32(s.sum.Failed), Bytes: uint64(s.sum.Bytes)})
}

// report counts a concluded entry, and reports it as an event.
func (s *incoming) report(e Entry) {
	s.sum.count(e)
	s.events.Entry(e)
}

// dirs completes the directories that this transfer has made.
func (s *incoming) dirs(ctx context.Context, m *proto.Dirs) error {
	var results []proto.Result
	for i := range m.Dirs {
		d := &m.Dirs[i]
		if d.Entry >= s.next {
			return faultf(proto.BadProtocol, "the sender completed entry %d, which it did not announce", d.Entry)
		}
		err := tree.CheckPath(d.Path)
		if err == nil {
			err = s.r.dest.CompleteDir(d.Path, d.Mode, d.Modified, s.sum.Transfer)
		}
		results = append(results, resultOf(d.Entry, err))
		s.report(entryOf(d.Path, proto.Directory, 0, err))
	}
	return s.conclude(ctx, results)
}

// conclude sends results, in as many messages as needed.
func (s *incoming) conclude(ctx context.Context, results []proto.Result) error {
	for len(results) > 0 {
		n, size := 0, 0
		for n < len(results) && n < proto.MaxSegments && size+8+len(results[n].Text) < proto.MaxMessage-8 {
			size += 8 + len(results[n].Text)
			n++
		}
		if err := s.l.Send(ctx, &proto.Results{Results: results[:n]}); err != nil {
			return err
		}
		results = results[n:]
	}
	return nil
}

func resultOf(index uint32, err error) proto.Result {
	r := proto.Result{Entry: index, Code: codeOf(err)}
	if err != nil {
		r.Text = proto.Cut(err.Error(), proto.MaxNote)
	}
	return r
}

func entryOf(path string, t proto.EntryType, size uint64, err error) Entry {
	e := Entry{Path: path, Type: t, Size: size, Code: codeOf(err)}
	if err != nil {
		e.Text = err.Error()
	}
	return e
}

// codeOf returns the code of an error of this end or of the peer.
func codeOf(err error) proto.Code {
	var f *Fault
	if errors.As(err, &f) {
		return f.Code
	}
	return tree.CodeOf(err)
}

// busyTimeout is how long a session waits, in all, for other sessions to release its entries.
// The session of a killed sender holds its entries until its connection is known to have
// ended.
const busyTimeout = 30 * time.Second

// reserve makes a session the only one that receives an entry.
func (r *Receiver) reserve(ctx context.Context, s *incoming, part string) (*reservation, error) {
	var patience <-chan time.Time
	for {
		r.mu.Lock()
		h := r.reservations[part]
		if h == nil {
			h = &reservation{s, make(chan struct{})}
			r.reservations[part] = h
			r.mu.Unlock()
			return h, nil
		}
		r.mu.Unlock()
		if h.session == s {
			return nil, faultf(proto.Busy, "the sender has sent the same name twice")
		}
		if patience == nil {
			began, t := time.Now(), time.NewTimer(s.waitLeft)
			defer func() { t.Stop(); s.waitLeft -= time.Since(began) }()
			patience = t.C
		}
		select {
		case <-h.released:
		case <-patience:
			return nil, faultf(proto.Busy, "another transfer is writing the file")
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// release lets other sessions receive an entry. A second call does nothing.
func (r *Receiver) release(f *file) {
	r.mu.Lock()
	defer r.mu.Unlock()
	part := tree.PartName(f.entry.Path)
	if f.reservation != nil && r.reservations[part] == f.reservation {
		delete(r.reservations, part)
		close(f.reservation.released)
	}
}
