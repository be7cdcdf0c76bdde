package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/link"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
)

// Files become blocks in three steps, each with goroutines of its own: pack decides what is
// in a block and in which slot; read fills the slot and hashes it; post gives it to the
// device, in order.

// block is a piece of a file, or several small files.
type block struct {
	slot    int // -1: none, it only concludes its item
	size    int // as far as it has been packed
	items   []*item
	offset  uint64 // of the one item, if that is larger than a block
	message proto.Block
	last    bool
	ready   chan struct{} // it has been read
	err     error         // it could not be
}

func (o *outgoing) takeSlot(ctx context.Context) (int, error) {
	select {
	case i := <-o.free:
		return i, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// submit hands a block on. There are as many places as slots, and room for the blocks that
// have none.
func (o *outgoing) submit(ctx context.Context, b *block) error {
	b.ready = make(chan struct{})
	select {
	case o.order <- b:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if b.slot < 0 {
		close(b.ready)
		return nil
	}
	select {
	case o.blocks <- b:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// pack makes blocks of what is wanted, until no more is.
func (o *outgoing) pack(ctx context.Context) error {
	var small *block // that is being filled
	flush := func() error {
		b := small
		if small = nil; b == nil {
			return nil
		}
		return o.submit(ctx, b)
	}
	for {
		var it *item
		select {
		case it = <-o.wanted:
		default:
			if err := flush(); err != nil {
				return err
			}
			select {
			case it = <-o.wanted:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if it == nil {
			return nil // it has been closed
		}
		if it.Size > proto.BlockSize {
			if err := flush(); err != nil {
				return err
			}
			if err := o.packLarge(ctx, it); err != nil {
				return err
			}
			continue
		}
		if small != nil && (small.size+int(it.Size) > proto.BlockSize || len(small.items) == proto.MaxSegments) {
			if err := flush(); err != nil {
				return err
			}
		}
		if small == nil {
			i, err := o.takeSlot(ctx)
			if err != nil {
				return err
			}
			small = &block{slot: i}
		}
		small.items = append(small.items, it)
		small.size += int(it.Size)
	}
}

// packLarge makes the blocks of a file that does not fit into one.
func (o *outgoing) packLarge(ctx context.Context, it *item) error {
	end := &block{slot: -1, items: []*item{it}}
	var err error
	if it.file, err = it.Open(); err != nil {
		o.unreadable(it, err)
		return o.submit(ctx, end)
	}
	it.refs.Store(1)
	defer it.release()
	begin, err := o.compare(ctx, it)
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		o.unreadable(it, err)
	}
	o.cfg.Events.Moved(int64(begin * proto.BlockSize))
	for off := begin * proto.BlockSize; off < it.Size; off += proto.BlockSize {
		if it.gone.Load() {
			return o.submit(ctx, end)
		}
		i, err := o.takeSlot(ctx)
		if err != nil {
			return err
		}
		n := int(min(it.Size-off, proto.BlockSize))
		it.refs.Add(1)
		b := &block{slot: i, size: n, items: []*item{it}, offset: off, last: off+uint64(n) == it.Size}
		if err := o.submit(ctx, b); err != nil {
			it.release()
			return err
		}
	}
	return nil
}

// compare reads the blocks that the receiver has of a file, and returns from which on to
// send: from the first unless they are the same.
func (o *outgoing) compare(ctx context.Context, it *item) (uint64, error) {
	if it.decision.Decision != proto.Resume {
		return 0, nil
	}
	var d proto.Digest
	buf := make([]byte, proto.BlockSize)
	for i := range it.decision.Blocks {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if _, err := it.file.ReadAt(buf, int64(i*proto.BlockSize)); err != nil {
			return 0, it.cutShort(it.file, err)
		}
		d.Add(proto.SumOf(buf))
	}
	if d.Sum() != it.decision.Digest {
		return 0, nil
	}
	it.digest = d
	return it.decision.Blocks, nil
}

// cutShort is the error for a file that could not be read as far as its size says.
func (it *item) cutShort(file *os.File, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return it.CheckEnd(file, false)
	}
	return err
}

// read fills slots and hashes them.
func (o *outgoing) read(ctx context.Context) {
	for b := range o.blocks {
		if ctx.Err() == nil {
			mem := o.local.Bytes()[b.slot*proto.BlockSize:][:proto.BlockSize]
			if b.items[0].Size > proto.BlockSize {
				o.readLarge(b, mem)
			} else {
				o.readSmall(b, mem)
			}
			b.message.Hash = proto.SumOf(mem[:b.size])
		}
		if b.items[0].file != nil {
			b.items[0].release()
		}
		close(b.ready)
	}
}

func (o *outgoing) readLarge(b *block, mem []byte) {
	it := b.items[0]
	if _, err := it.file.ReadAt(mem[:b.size], int64(b.offset)); err != nil {
		b.err = it.cutShort(it.file, err)
	}
	b.message.Segments = []proto.Segment{{Entry: it.index, Offset: b.offset, Length: uint32(b.size), Last: b.last}}
}

func (o *outgoing) readSmall(b *block, mem []byte) {
	n := 0
	for _, it := range b.items {
		if err := readAll(it, mem[n:n+int(it.Size)]); err != nil {
			o.unreadable(it, err)
			continue
		}
		n += int(it.Size)
		b.message.Segments = append(b.message.Segments, proto.Segment{Entry: it.index, Length: uint32(it.Size), Last: true})
	}
	b.size = n
}

func readAll(it *item, mem []byte) error {
	f, err := it.Open()
	if err != nil {
		return err
	}
	if _, err = io.ReadFull(f, mem); err != nil {
		err = it.cutShort(f, err)
	} else {
		err = it.CheckEnd(f, true)
	}
	return errors.Join(err, f.Close())
}

// post gives the blocks to the device, in order.
func (o *outgoing) post(ctx context.Context) error {
	for b := range o.order {
		select {
		case <-b.ready:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return context.Cause(ctx) // the block may not have been read
		}
		var err error
		if b.items[0].Size > proto.BlockSize {
			err = o.postLarge(ctx, b)
		} else {
			err = o.postSmall(ctx, b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *outgoing) postSmall(ctx context.Context, b *block) error {
	for _, it := range b.items {
		if it.gone.Load() {
			if err := o.discard(ctx, it); err != nil {
				return err
			}
		}
	}
	return o.give(ctx, b)
}

func (o *outgoing) postLarge(ctx context.Context, b *block) error {
	it := b.items[0]
	if b.err == nil && b.last && !it.gone.Load() {
		b.err = o.stillSame(it)
	}
	if b.err != nil {
		o.unreadable(it, b.err)
	}
	if it.concluded || it.gone.Load() {
		err := o.discard(ctx, it)
		b.message.Segments = nil
		return errors.Join(err, o.give(ctx, b))
	}
	it.digest.Add(b.message.Hash)
	if s := &b.message.Segments[0]; s.Last {
		s.Digest = it.digest.Sum()
	}
	return o.give(ctx, b)
}

// stillSame is the last look at a file of several blocks, all of which have been read.
func (o *outgoing) stillSame(it *item) error {
	f, err := it.Open()
	if err != nil {
		return err
	}
	return errors.Join(it.CheckEnd(f, true), f.Close())
}

// discard tells the receiver that no more of an item will come, once.
func (o *outgoing) discard(ctx context.Context, it *item) error {
	o.mu.Lock()
	done := it.concluded
	it.concluded = true
	code := proto.Unreadable
	if it.changed {
		code = proto.Changed
	}
	o.mu.Unlock()
	if done {
		return nil
	}
	return o.l.Send(ctx, &proto.Discard{Entry: it.index, Code: code})
}

// give gives a block to the device, and the message that says so; one without segments is
// dropped.
func (o *outgoing) give(ctx context.Context, b *block) error {
	if b.slot < 0 {
		return nil
	}
	o.mu.Lock()
	s := &o.slots[b.slot]
	if len(b.message.Segments) == 0 {
		o.freeSlot(b.slot)
		o.mu.Unlock()
		return nil
	}
	*s = slot{writes: 1, unread: true, length: b.size}
	for _, it := range b.items {
		if it.Size <= proto.BlockSize && !it.gone.Load() || b.last {
			it.concluded = true
		}
	}
	o.mu.Unlock()
	b.message.Slot = uint16(b.slot)
	base := b.slot * proto.BlockSize
	for off := 0; off < b.size; {
		n := o.cfg.Limit.piece(b.size - off)
		if err := o.cfg.Limit.wait(ctx, n); err != nil {
			return err
		}
		select {
		case o.writes <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		o.mu.Lock()
		s.writes++
		o.mu.Unlock()
		w := link.Write{Source: o.local, From: base + off, Target: o.remote, To: base + off, Length: n, Done: func() { o.written(b.slot) }}
		off += n
		var m proto.Message
		if off == b.size {
			m = &b.message
		}
		if err := o.l.WriteSend(ctx, w, m); err != nil {
			return fmt.Errorf("send a block: %w", err)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	s.writes--
	o.freeSlot(b.slot)
	return nil
}

// written is called when the device has done a write.
func (o *outgoing) written(i int) {
	<-o.writes
	o.mu.Lock()
	defer o.mu.Unlock()
	o.slots[i].writes--
	o.freeSlot(i)
}
