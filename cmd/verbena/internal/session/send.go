package session

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/link"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
	"github.com/verbena-rdma/verbena/mmap"
)

// SenderConfig defines what to send.
type SenderConfig struct {
	Sources []tree.Source
	Text    *string  // a plain message to send instead of sources
	Secret  []byte   // nil: none
	ID      string   // sent to the receiver
	Limit   *Limiter // nil: no limit
	Events  Events
}

// Sender sends the same content over one connection after another, until a transfer is
// complete.
type Sender struct {
	cfg      SenderConfig
	transfer [16]byte
}

// NewSender makes a sender.
func NewSender(cfg SenderConfig) *Sender {
	if cfg.Limit == nil {
		cfg.Limit = NewLimiter(0)
	}
	s := &Sender{cfg: cfg}
	_, _ = rand.Read(s.transfer[:]) // never fails
	return s
}

// Run sends over a link, and does not close it. It does not send again what the receiver has.
// After an error that matches link.ErrBroken, try another connection.
func (s *Sender) Run(ctx context.Context, l *link.Link) (Summary, error) {
	o := &outgoing{Sender: s, l: l, sources: tree.NewFiles(s.cfg.Sources), sum: Summary{Transfer: s.transfer}}
	err := o.run(ctx)
	if err != nil {
		refuse(l, err)
	}
	o.wg.Wait()
	o.closeMaps()
	return o.sum, errors.Join(err, o.sources.Close())
}

// item is an entry that has been announced and is not concluded.
type item struct {
	tree.Found
	index     uint32
	unplanned bool // the receiver has not decided on it yet
	closesOne bool // it is the last of its Entries message
	decision  proto.Item

	gone      atomic.Bool // the receiver has concluded it: stop sending
	concluded bool        // its last segment, or its Discard, has been sent; protected by outgoing.mu
	why       string      // why it could not be read; protected likewise
}

// outgoing is a Sender's end of one connection.
type outgoing struct {
	*Sender
	l             *link.Link
	sources       *tree.Files
	local, remote *mmap.Map
	cancel        context.CancelCauseFunc
	wg            sync.WaitGroup

	room      chan struct{} // semaphore: entries announced and not concluded
	unplanned chan struct{} // semaphore: Entries messages without a Plan
	free      chan int      // slots that the receiver does not hold
	wanted    chan *item
	replies   chan proto.Message
	changed   chan struct{} // signaled when an item is concluded

	posted []*await.Pending // of the last block of each slot; belongs to the goroutine that sends files

	mu    sync.Mutex
	items map[uint32]*item
	held  []int // by slot: how many bytes the receiver holds there
	sum   Summary
	next  uint32  // the next index
	dirs  []*item // directories to complete at the end
}

func (o *outgoing) run(parent context.Context) error {
	welcome, err := o.handshake(parent, o.l)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	o.cancel = cancel
	o.replies = make(chan proto.Message, 2)
	o.items = map[uint32]*item{}
	o.wg.Go(func() { watch(ctx, o.l, o.fail) })
	if o.cfg.Text != nil {
		o.wg.Go(func() { o.dispatch(ctx) })
		err = o.l.Send(ctx, &proto.Text{Text: *o.cfg.Text})
		o.sum.Text = true
	} else if err = o.open(welcome); err == nil {
		o.wg.Go(func() { o.dispatch(ctx) })
		err = o.sendFiles(ctx)
	}
	if err == nil {
		err = o.finish(ctx)
	}
	if err != nil {
		cancel(err)
		if cause := context.Cause(ctx); cause != nil {
			err = cause // the first error
		}
	}
	return err
}

// fail ends the session with an error, unless it has ended.
func (o *outgoing) fail(err error) { o.cancel(err) }

// open makes this end's window, and maps the receiver's.
func (o *outgoing) open(w *proto.Welcome) error {
	dev := o.l.Device()
	var err error
	if o.remote, err = mmap.FromKey(dev, w.Addr, int(w.Length), w.RKey, mmap.RemoteWrite); err != nil {
		return faultf(proto.BadProtocol, "the receiver's window: %v", err)
	}
	if o.local, err = mmap.Alloc(dev, int(w.Length), mmap.LocalReadOnly); err != nil {
		return err
	}
	n := int(w.Length / proto.BlockSize)
	o.posted, o.held = make([]*await.Pending, n), make([]int, n)
	o.free = make(chan int, n)
	for i := range n {
		o.free <- i
	}
	o.room = make(chan struct{}, proto.Outstanding)
	o.unplanned = make(chan struct{}, proto.Unplanned)
	o.wanted = make(chan *item, proto.Outstanding)
	o.changed = make(chan struct{}, 1)
	return nil
}

func (o *outgoing) closeMaps() {
	// A write that is still at the device keeps its memory until the device closes.
	for _, m := range []*mmap.Map{o.local, o.remote} {
		if m != nil {
			_ = m.Close()
		}
	}
}

// sendFiles sends all sources to the receiver.
func (o *outgoing) sendFiles(ctx context.Context) error {
	var worker sync.WaitGroup
	worker.Go(func() {
		if err := o.sendWanted(ctx); err != nil {
			o.fail(err)
		}
	})
	err := o.announceAll(ctx)
	if err == nil {
		err = o.drained(ctx)
	}
	if err == nil {
		err = o.completeDirs(ctx)
	}
	if err != nil {
		o.fail(err)
	}
	close(o.wanted)
	worker.Wait()
	return err
}

// drained waits until every announced entry is concluded.
func (o *outgoing) drained(ctx context.Context) error {
	for {
		o.mu.Lock()
		n := len(o.items)
		o.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-o.changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// conclude records the outcome of an item. The caller holds mu.
func (o *outgoing) conclude(it *item, code proto.Code, text string, had bool) {
	delete(o.items, it.index)
	<-o.room
	if it.why != "" {
		text = it.why
	}
	if it.Type == proto.Directory && code == proto.OK && !it.concluded {
		o.dirs = append(o.dirs, it)
	} else {
		e := Entry{Path: it.Path, Type: it.Type, Size: it.Size, Code: code, Text: text, Had: had}
		o.sum.count(e)
		o.cfg.Events.Entry(e)
	}
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// finish ends the transfer, and exchanges the ID for the key.
func (o *outgoing) finish(ctx context.Context) error {
	if o.cfg.Text == nil {
		if err := o.l.Send(ctx, &proto.End{Entries: o.next}); err != nil {
			return err
		}
	}
	verdict, err := reply[*proto.Verdict](ctx, o)
	if err != nil {
		return err
	}
	if err := o.l.Send(ctx, &proto.ID{Text: o.cfg.ID}); err != nil {
		return err
	}
	key, err := reply[*proto.Key](ctx, o)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cfg.Text == nil && !verdict.Good {
		o.sum.Failed = max(o.sum.Failed, int(verdict.Failed), 1)
	}
	o.sum.ID, o.sum.Key, o.sum.Complete = o.cfg.ID, key.Text, true
	return nil
}

func reply[T proto.Message](ctx context.Context, o *outgoing) (T, error) {
	var zero T
	select {
	case m := <-o.replies:
		if t, ok := m.(T); ok {
			return t, nil
		}
		return zero, faultf(proto.BadProtocol, "the receiver sent a %T, want a %T", m, zero)
	case <-ctx.Done():
		return zero, context.Cause(ctx)
	}
}

// dispatch handles the receiver's messages.
func (o *outgoing) dispatch(ctx context.Context) {
	for {
		m, err := next(ctx, o.l)
		if err == nil {
			err = o.handle(m)
		}
		if err != nil {
			o.fail(err)
			return
		}
	}
}

func (o *outgoing) handle(m proto.Message) error {
	switch m := m.(type) {
	case *proto.Plan:
		return o.planned(m)
	case *proto.Results:
		return o.results(m)
	case *proto.Ack:
		return o.acknowledged(m)
	case *proto.Verdict, *proto.Key:
		select {
		case o.replies <- m:
			return nil
		default:
		}
	}
	return faultf(proto.BadProtocol, "the receiver sent an unexpected %T", m)
}

func (o *outgoing) planned(p *proto.Plan) error {
	for i := range p.Items {
		index := p.First + uint32(i)
		o.mu.Lock()
		it, ok := o.items[index]
		ok = ok && it.unplanned
		if ok {
			it.unplanned, it.decision = false, p.Items[i]
			if it.closesOne {
				<-o.unplanned
			}
		}
		o.mu.Unlock()
		if !ok {
			return faultf(proto.BadProtocol, "the receiver sent a decision on entry %d, which awaits none", index)
		}
		if err := o.decided(it); err != nil {
			return err
		}
	}
	return nil
}

func (o *outgoing) decided(it *item) error {
	d := it.decision
	switch d.Decision {
	case proto.Send, proto.Resume:
		if it.Type != proto.File || it.Size == 0 || d.Length >= it.Size {
			return faultf(proto.BadProtocol, "the receiver has %d bytes of %s and asks for more, but the file has only %d", d.Length, tree.Show(it.Path), it.Size)
		}
		o.wanted <- it // never blocks: there is room for all items
		return nil
	}
	if d.Decision == proto.Have && it.Type == proto.File {
		o.cfg.Events.Moved(int64(it.Size))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.conclude(it, d.Code, d.Text, d.Decision == proto.Have)
	return nil
}

func (o *outgoing) results(m *proto.Results) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range m.Results {
		it := o.items[r.Entry]
		// The receiver may fail a file of several blocks before the last one was sent.
		if it == nil || it.unplanned || !it.concluded && (r.Code == proto.OK || it.Size <= proto.BlockSize) {
			return faultf(proto.BadProtocol, "the receiver sent the result of entry %d too early", r.Entry)
		}
		it.gone.Store(true)
		o.conclude(it, r.Code, r.Text, false)
	}
	return nil
}

func (o *outgoing) acknowledged(m *proto.Ack) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := int(m.Slot)
	if i >= len(o.held) || o.held[i] == 0 {
		return faultf(proto.BadProtocol, "the receiver released slot %d, which it does not hold", i)
	}
	n := int64(o.held[i])
	o.held[i] = 0
	o.sum.Bytes += n
	o.cfg.Events.Moved(n)
	o.free <- i
	return nil
}

// announceAll walks the sources, and announces the entries that it finds.
func (o *outgoing) announceAll(ctx context.Context) error {
	a := announcer{o: o}
	if err := o.sources.Walk(ctx, func(f tree.Found) error { return a.add(ctx, f) }); err != nil {
		return err
	}
	return a.flush(ctx)
}

// announcer collects entries for one message.
type announcer struct {
	o     *outgoing
	list  []*item
	size  int
	began time.Time
}

// entrySize is the most that an entry takes in a message, without its strings.
const entrySize = 32

// announceDelay is how long an entry may wait for others to join its message.
const announceDelay = 20 * time.Millisecond

func (a *announcer) add(ctx context.Context, f tree.Found) error {
	o := a.o
	if f.Code == proto.OK {
		if f.Err = f.Probe(); f.Err != nil {
			f.Code = proto.Unreadable
		}
	}
	if f.Code != proto.OK {
		o.mu.Lock()
		defer o.mu.Unlock()
		e := Entry{Path: f.Path, Type: f.Type, Size: f.Size, Code: f.Code, Text: f.Err.Error()}
		o.sum.count(e)
		o.cfg.Events.Entry(e)
		return nil
	}
	size := entrySize + len(f.Path) + len(f.Target)
	if len(a.list) == proto.MaxEntries/2 || a.size+size > proto.MaxMessage-64 || len(a.list) > 0 && time.Since(a.began) > announceDelay {
		if err := a.flush(ctx); err != nil {
			return err
		}
	}
	select {
	case o.room <- struct{}{}:
	default:
		if err := a.flush(ctx); err != nil {
			return err
		}
		select {
		case o.room <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if len(a.list) == 0 {
		a.began = time.Now()
	}
	a.list = append(a.list, &item{Found: f, unplanned: true})
	a.size += size
	return nil
}

func (a *announcer) flush(ctx context.Context) error {
	if len(a.list) == 0 {
		return nil
	}
	o := a.o
	select {
	case o.unplanned <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	m := &proto.Entries{}
	o.mu.Lock()
	m.First = o.next
	for _, it := range a.list {
		it.index = o.next
		o.next++
		o.items[it.index] = it
		m.Entries = append(m.Entries, it.Entry)
	}
	a.list[len(a.list)-1].closesOne = true
	o.mu.Unlock()
	a.list, a.size = nil, 0
	return o.l.Send(ctx, m)
}

// completeDirs sets the modes and times of directories at the receiver, after the last change
// to their contents. Subdirectories come first.
func (o *outgoing) completeDirs(ctx context.Context) error {
	o.mu.Lock()
	dirs := o.dirs
	o.dirs = nil
	o.mu.Unlock()
	for len(dirs) > 0 {
		m := &proto.Dirs{}
		o.mu.Lock()
		for size := 0; len(dirs) > 0 && len(m.Dirs) < proto.MaxEntries; dirs = dirs[:len(dirs)-1] {
			it := dirs[len(dirs)-1]
			if size += entrySize + len(it.Path); size > proto.MaxMessage-64 {
				break
			}
			it.concluded = true // only its Result is still to come
			o.room <- struct{}{}
			o.items[it.index] = it
			m.Dirs = append(m.Dirs, proto.DirEntry{Entry: it.index, Mode: it.Mode, Modified: it.Modified, Path: it.Path})
		}
		o.mu.Unlock()
		if err := o.l.Send(ctx, m); err != nil {
			return err
		}
		if err := o.drained(ctx); err != nil {
			return err
		}
	}
	return nil
}
