package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/link"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
	"github.com/verbena-rdma/verbena/mmap"
)

// ReceiverConfig says what is taken, and from whom.
type ReceiverConfig struct {
	Secret   []byte // nil: none, and only from this machine
	Insecure bool   // without a secret also from other machines
	Key      string // for senders, in return for their ID; empty: a random one for each
	MaxSize  uint64 // of a file; zero: as large as the disk has room for
	Slots    int    // of each window, of proto.BlockSize bytes; zero: 16
	Sync     bool   // files are on the disk before they are reported
}

// DefaultSlots is the size of a window unless ReceiverConfig says otherwise.
const DefaultSlots = 16

// Receiver takes transfers into one folder, any number at a time.
type Receiver struct {
	cfg  ReceiverConfig
	dest *tree.Dest

	mu       sync.Mutex
	held     map[string]*hold       // entries that are being received, by the names of their parts
	sessions map[[16]byte]*incoming // by transfer
}

// hold says who receives an entry.
type hold struct {
	by   *incoming
	done chan struct{} // closed when it no longer does
}

// NewReceiver makes a receiver.
func NewReceiver(dest *tree.Dest, cfg ReceiverConfig) *Receiver {
	if cfg.Slots == 0 {
		cfg.Slots = DefaultSlots
	}
	return &Receiver{cfg: cfg, dest: dest, held: map[string]*hold{}, sessions: map[[16]byte]*incoming{}}
}

// Serve receives over a link, which remains the caller's to close, until the sender has
// brought it to an end, or the connection has ended, or ctx.
func (r *Receiver) Serve(ctx context.Context, l *link.Link, events Events) (Summary, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &incoming{r: r, l: l, events: events, cancel: cancel, ended: make(chan struct{}),
		patience: busyPatience, files: map[uint32]*file{}, order: make(chan *job, r.cfg.Slots+discards), jobs: make(chan *job, r.cfg.Slots)}
	s.busy = make([]bool, r.cfg.Slots)
	err := s.run(ctx)
	if err != nil {
		refuse(l, err)
	}
	return s.sum, err
}

// discards is how many blocks and discards the loop may be ahead of settle, beyond the
// slots.
const discards = 16

// job is a block that has arrived, or the end of a file of which nothing more comes.
type job struct {
	slot    int // -1: none
	block   *proto.Block
	files   []*file // of the segments
	restart bool    // the file begins again
	discard proto.Code
	errs    []error // of the segments
	damaged bool
	done    chan struct{}
}

// incoming is a Receiver's end of one connection.
type incoming struct {
	r      *Receiver
	l      *link.Link
	events Events
	cancel context.CancelCauseFunc
	ended  chan struct{}
	window *mmap.Map
	sum    Summary // belongs to the loop and, under mu, to settle

	mu      sync.Mutex
	busy    []bool         // slots that were filled and not given back
	pending sync.WaitGroup // jobs that are not settled

	// These belong to the loop.
	files    map[uint32]*file // wanted, and not concluded by the sender
	begun    int              // of these: that are open
	next     uint32           // the next index
	lost     []*file          // of a job that could not be queued any more
	patience time.Duration    // that is left of busyPatience
	order    chan *job
	jobs     chan *job
}

func (s *incoming) run(ctx context.Context) error {
	hello, mac, err := s.r.admit(ctx, s.l)
	if err != nil {
		return err
	}
	s.sum.Transfer = hello.Transfer
	if err := s.replace(ctx, hello.Transfer); err != nil {
		return err
	}
	defer s.leave(hello.Transfer)
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
	var workers, others sync.WaitGroup
	for range min(max(runtime.GOMAXPROCS(0), 2), 4) {
		workers.Go(func() {
			for j := range s.jobs {
				s.store(j)
				close(j.done)
			}
		})
	}
	others.Go(func() { s.settleAll(ctx) })
	watched, stop := context.WithCancel(ctx)
	others.Go(func() { watch(watched, s.l, func(err error) { s.cancel(err) }) })
	err = s.loop(ctx)
	stop()
	if err != nil {
		s.cancel(err)
	}
	close(s.jobs)
	close(s.order)
	workers.Wait()
	others.Wait()
	for _, f := range slices.AppendSeq(s.lost, maps.Values(s.files)) {
		f.close()
		s.r.release(f)
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // the first
	}
	return err
}

// replace ends an earlier session of the same run of the same sender, which has connected
// again, and takes its place.
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

// Receives reports whether a transfer has a connection that is past its handshake.
func (r *Receiver) Receives(transfer [16]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions[transfer] != nil
}

func (s *incoming) leave(transfer [16]byte) {
	s.r.mu.Lock()
	delete(s.r.sessions, transfer)
	s.r.mu.Unlock()
	close(s.ended)
}

// loop handles what the sender sends, until it has closed the connection after the end.
func (s *incoming) loop(ctx context.Context) error {
	over := false // the verdict has been given
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
				return faultf(proto.BadProtocol, "the sender sent a text where none belongs")
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
			err = faultf(proto.BadProtocol, "the sender sent a %T, which is the receiver's to send", m)
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
	// Behind a result that says that a file has failed, the sender says what it takes back, and
	// does not wait: it may end while that is still to be settled.
	s.pending.Wait()
	if m.Entries != s.next || len(s.files) > 0 {
		return faultf(proto.BadProtocol, "the sender ends after %d entries; it has announced %d, and %d are not complete", m.Entries, s.next, len(s.files))
	}
	s.mu.Lock()
	v := &proto.Verdict{Good: s.sum.Failed == 0, Stored: uint32(s.sum.Entries), Failed: uint32(s.sum.Failed), Bytes: uint64(s.sum.Bytes)}
	s.mu.Unlock()
	return s.l.Send(ctx, v)
}

// report counts an entry that is concluded.
func (s *incoming) report(e Entry) {
	s.mu.Lock()
	s.sum.count(e)
	s.mu.Unlock()
	s.events.Entry(e)
}

// maxBegun is how many files of several blocks may be open.
const maxBegun = 16

// block takes a block: the done message for a slot.
func (s *incoming) block(ctx context.Context, m *proto.Block) error {
	if int(m.Slot) >= len(s.busy) {
		return faultf(proto.BadProtocol, "a block in slot %d; the window has %d", m.Slot, len(s.busy))
	}
	s.mu.Lock()
	was := s.busy[m.Slot]
	s.busy[m.Slot] = true
	s.mu.Unlock()
	if was {
		return faultf(proto.BadProtocol, "a block in slot %d, which has not been given back", m.Slot)
	}
	j := &job{slot: int(m.Slot), block: m, errs: make([]error, len(m.Segments)), done: make(chan struct{})}
	for i := range m.Segments {
		seg := &m.Segments[i]
		f := s.files[seg.Entry]
		if f == nil {
			return faultf(proto.BadProtocol, "a block of entry %d, which is not wanted", seg.Entry)
		}
		if err := s.accept(j, f, seg); err != nil {
			return err
		}
		j.files = append(j.files, f)
		if seg.Last {
			s.drop(seg.Entry)
		}
	}
	return s.queue(ctx, j)
}

// drop forgets a file of which nothing more may come.
func (s *incoming) drop(index uint32) {
	if s.files[index].begun {
		s.begun--
	}
	delete(s.files, index)
}

// accept checks that a segment is the next of its file.
func (s *incoming) accept(j *job, f *file, seg *proto.Segment) error {
	size := f.entry.Size
	want := min(size, proto.BlockSize)
	if size > proto.BlockSize {
		if len(j.block.Segments) != 1 {
			return faultf(proto.BadProtocol, "entry %d shares a block, but has %d bytes", seg.Entry, size)
		}
		if seg.Offset == 0 && f.expected != 0 && !f.moved {
			f.expected, j.restart = 0, true // what was here is not what the sender has
		}
		f.moved = true
		if seg.Offset == f.expected {
			want = min(size-seg.Offset, proto.BlockSize)
		}
	}
	end := seg.Offset + uint64(seg.Length)
	if seg.Offset != f.expected || uint64(seg.Length) != want || seg.Last != (end == size) {
		return faultf(proto.BadProtocol, "%d bytes from %d on of entry %d, which has %d; those from %d on belong here",
			seg.Length, seg.Offset, seg.Entry, size, f.expected)
	}
	f.expected = end
	if size <= proto.BlockSize || f.begun {
		return nil
	}
	if s.begun++; s.begun > maxBegun {
		return faultf(proto.BadProtocol, "the sender has begun more than %d large files", maxBegun)
	}
	f.begun = true
	if f.part == nil {
		f.fail(f.open(s.r.dest))
	}
	return nil
}

// discard takes back a file.
func (s *incoming) discard(ctx context.Context, m *proto.Discard) error {
	f := s.files[m.Entry]
	if f == nil {
		return faultf(proto.BadProtocol, "the sender takes back entry %d, which is not wanted", m.Entry)
	}
	s.drop(m.Entry)
	j := &job{slot: -1, files: []*file{f}, discard: m.Code, done: make(chan struct{})}
	close(j.done)
	return s.queue(ctx, j)
}

func (s *incoming) queue(ctx context.Context, j *job) error {
	s.pending.Add(1)
	if j.slot >= 0 {
		s.jobs <- j // there is room for a job for each slot
	}
	select {
	case s.order <- j:
		return nil
	case <-ctx.Done():
		s.lost = j.files
		s.pending.Done()
		return context.Cause(ctx)
	}
}

// dirs completes directories.
func (s *incoming) dirs(ctx context.Context, m *proto.Dirs) error {
	var results []proto.Result
	for i := range m.Dirs {
		d := &m.Dirs[i]
		if d.Entry >= s.next {
			return faultf(proto.BadProtocol, "the sender completes entry %d, which it has not announced", d.Entry)
		}
		err := tree.CheckPath(d.Path)
		if err == nil {
			err = s.r.dest.SetDir(d.Path, d.Mode, d.Modified)
		}
		results = append(results, resultOf(d.Entry, err))
		s.report(entryOf(d.Path, proto.Directory, 0, err))
	}
	return s.conclude(ctx, results)
}

// conclude sends results, in as many messages as it takes.
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

// codeOf is the code of an error, whoever has found it.
func codeOf(err error) proto.Code {
	var f *Fault
	if errors.As(err, &f) {
		return f.Code
	}
	return tree.CodeOf(err)
}

// busyPatience is how long a session waits, in all, for others to let go of its entries: for
// that of a sender that was killed, until its connection is known to have ended.
const busyPatience = 30 * time.Second

// acquire makes a session the only one to receive an entry.
func (r *Receiver) acquire(ctx context.Context, s *incoming, part string) (*hold, error) {
	var patience <-chan time.Time
	for {
		r.mu.Lock()
		h := r.held[part]
		if h == nil {
			h = &hold{s, make(chan struct{})}
			r.held[part] = h
			r.mu.Unlock()
			return h, nil
		}
		r.mu.Unlock()
		if h.by == s {
			return nil, faultf(proto.Busy, "it is being received already: the name comes twice")
		}
		if patience == nil {
			began, t := time.Now(), time.NewTimer(s.patience)
			defer func() { t.Stop(); s.patience -= time.Since(began) }()
			patience = t.C
		}
		select {
		case <-h.done:
		case <-patience:
			return nil, faultf(proto.Busy, "another transfer is writing it")
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// release lets go of an entry; again does nothing.
func (r *Receiver) release(f *file) {
	r.mu.Lock()
	defer r.mu.Unlock()
	part := tree.PartName(f.entry.Path)
	if f.hold != nil && r.held[part] == f.hold {
		delete(r.held, part)
		close(f.hold.done)
	}
}
