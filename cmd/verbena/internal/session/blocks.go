package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/link"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
)

// block is the content of a slot: a piece of a file, or several small files.
type block struct {
	slot  int
	size  int
	items []*item // items that end with this block
	proto.Block
}

// slotMemory returns the memory of a slot.
func (o *outgoing) slotMemory(slot int) []byte {
	return o.local.Bytes()[slot*proto.BlockSize:][:proto.BlockSize]
}

// takeSlot takes a slot that neither the receiver nor the device uses.
func (o *outgoing) takeSlot(ctx context.Context) (int, error) {
	select {
	case i := <-o.free:
		return i, o.l.Wait(ctx, o.posted[i])
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// sendWanted sends the files that the receiver wants, until wanted is closed. Small files
// share a block, which is sent when it is full or when no other file waits.
func (o *outgoing) sendWanted(ctx context.Context) error {
	var small *block
	flush := func() error {
		b := small
		if small = nil; b == nil {
			return nil
		}
		return o.sendBlock(ctx, b)
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
			return nil // wanted has been closed
		}
		large := it.Size > proto.BlockSize
		if small != nil && (large || small.size+int(it.Size) > proto.BlockSize || len(small.Segments) == proto.MaxSegments) {
			if err := flush(); err != nil {
				return err
			}
		}
		if large {
			if err := o.sendLarge(ctx, it); err != nil {
				return err
			}
			continue
		}
		if small == nil {
			i, err := o.takeSlot(ctx)
			if err != nil {
				return err
			}
			small = &block{slot: i}
		}
		if err := o.addSmall(ctx, small, it); err != nil {
			return err
		}
	}
}

// addSmall adds a whole file to a block.
func (o *outgoing) addSmall(ctx context.Context, b *block, it *item) error {
	mem := o.slotMemory(b.slot)[b.size:][:it.Size]
	if err := readAll(it, mem); err != nil {
		return o.discard(ctx, it, err)
	}
	b.size += len(mem)
	b.items = append(b.items, it)
	b.Segments = append(b.Segments, proto.Segment{Entry: it.index, Length: uint32(len(mem)), Last: true, Hash: proto.SumOf(mem)})
	return nil
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

// cutShort returns the error for a file that has less data than its size.
func (it *item) cutShort(file *os.File, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return it.CheckEnd(file, false)
	}
	return err
}

// sendLarge sends a file that does not fit into one block.
func (o *outgoing) sendLarge(ctx context.Context, it *item) error {
	file, err := it.Open()
	if err != nil {
		return o.discard(ctx, it, err)
	}
	defer file.Close()
	begin, digest, err := o.compare(ctx, it, file)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return o.discard(ctx, it, err)
	}
	o.cfg.Events.Moved(int64(begin))
	for off := begin; off < it.Size; {
		i, err := o.takeSlot(ctx)
		if err != nil {
			return err
		}
		mem := o.slotMemory(i)[:min(it.Size-off, proto.BlockSize)]
		if it.gone.Load() {
			err = errGone
		} else {
			err = it.readAt(file, mem, off, &digest)
		}
		seg := proto.Segment{Entry: it.index, Offset: off, Length: uint32(len(mem))}
		off += uint64(len(mem))
		if seg.Last = off == it.Size; err == nil && seg.Last {
			err = it.checkUnchanged()
		}
		if err != nil {
			o.free <- i
			return o.discard(ctx, it, err)
		}
		b := &block{slot: i, size: len(mem)}
		if seg.Last {
			seg.Hash, b.items = digest.Sum(), []*item{it}
		}
		b.Segments = []proto.Segment{seg}
		if err := o.sendBlock(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// readAt reads a piece of a file, and adds it to the digest.
func (it *item) readAt(file *os.File, mem []byte, off uint64, digest *proto.Digest) error {
	if _, err := file.ReadAt(mem, int64(off)); err != nil {
		return it.cutShort(file, err)
	}
	digest.Add(mem)
	return nil
}

// compare reads the part of a file that the receiver has. If it is the same here, compare
// returns the offset behind it and the digest of the part; otherwise offset zero and an empty
// digest.
func (o *outgoing) compare(ctx context.Context, it *item, file *os.File) (begin uint64, d proto.Digest, err error) {
	if it.decision.Decision != proto.Resume {
		return 0, d, nil
	}
	buf := make([]byte, proto.BlockSize)
	for begin < it.decision.Length && ctx.Err() == nil {
		piece := buf[:min(it.decision.Length-begin, proto.BlockSize)]
		if err := it.readAt(file, piece, begin, &d); err != nil {
			return 0, d, err
		}
		begin += uint64(len(piece))
	}
	if d.Sum() != it.decision.Hash {
		return 0, proto.Digest{}, nil
	}
	return begin, d, nil
}

// checkUnchanged checks a file of several blocks once more after all of it has been read.
func (it *item) checkUnchanged() error {
	f, err := it.Open()
	if err != nil {
		return err
	}
	return errors.Join(it.CheckEnd(f, true), f.Close())
}

// errGone: the receiver could not store the file.
var errGone = errors.New("the receiver could not store it")

// discard announces to the receiver that the rest of an item will not come. err is the reason.
func (o *outgoing) discard(ctx context.Context, it *item, err error) error {
	o.mu.Lock()
	it.concluded, it.why = true, err.Error()
	o.mu.Unlock()
	code := proto.Unreadable
	if errors.Is(err, tree.ErrChanged) {
		code = proto.Changed
	}
	return o.l.Send(ctx, &proto.Discard{Entry: it.index, Code: code})
}

// sendBlock posts the writes of a block, and behind them its Block message.
func (o *outgoing) sendBlock(ctx context.Context, b *block) (err error) {
	if len(b.Segments) == 0 { // no file could be read
		o.free <- b.slot
		return nil
	}
	o.mu.Lock()
	o.held[b.slot] = b.size
	for _, it := range b.items {
		it.concluded = true
	}
	o.mu.Unlock()
	b.Slot = uint16(b.slot)
	for off, base := 0, b.slot*proto.BlockSize; off < b.size; {
		n := o.cfg.Limit.piece(b.size - off)
		if err := o.cfg.Limit.wait(ctx, n); err != nil {
			return err
		}
		w := link.Write{Source: o.local, From: base + off, Target: o.remote, To: base + off, Length: n}
		var m proto.Message
		if off += n; off == b.size {
			m = &b.Block
		}
		if o.posted[b.slot], err = o.l.WriteSend(ctx, w, m); err != nil {
			return fmt.Errorf("send a block: %w", err)
		}
	}
	return nil
}
