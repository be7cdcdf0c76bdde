package session

import (
	"context"
	"errors"
	"io/fs"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
)

// file is an entry that the sender must send. It is written in order.
type file struct {
	entry       proto.Entry
	index       uint32
	reservation *reservation
	part        *tree.Part   // nil: not open
	digest      proto.Digest // of the data in part
	length      uint64       // of the data in part, which is the offset of the next segment
	begun       bool         // it has several blocks, and the first has arrived
	failed      bool         // its result has been reported; drop further data
}

// append writes the next piece of a file.
func (f *file) append(dest *tree.Dest, offset uint64, piece []byte) (err error) {
	switch {
	case f.part == nil:
		f.part, err = dest.NewPart(f.entry.Path)
	case offset == 0: // the sender's file differs from the data of an earlier transfer
		f.digest = proto.Digest{}
		err = f.part.Truncate(0)
	}
	if err != nil {
		return err
	}
	f.digest.Add(piece)
	_, err = f.part.WriteAt(piece, int64(offset))
	return err
}

// close closes the part. Its data stays, so that a later transfer can resume.
func (f *file) close() {
	if f.part != nil {
		_ = f.part.Close() // does nothing after Commit
	}
}

// maxResumed is how many files are kept open to be resumed. Further files start from the
// beginning.
const maxResumed = 16

// resume looks for data of a file that an earlier transfer has left. It keeps whole blocks,
// but never the last block of the file: the sender has to send that one to conclude the file.
func (s *incoming) resume(ctx context.Context, f *file) error {
	open := 0
	for _, other := range s.files {
		if other.part != nil {
			open++
		}
	}
	if open >= maxResumed {
		return nil
	}
	part, err := s.r.dest.OldPart(f.entry.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	f.part = part
	info, err := part.Stat()
	if err != nil {
		return err
	}
	whole := min(uint64(info.Size()), f.entry.Size-1) / proto.BlockSize * proto.BlockSize
	if err := part.Truncate(int64(whole)); err != nil {
		return err
	}
	block := make([]byte, proto.BlockSize)
	for f.length < whole {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, err := part.ReadAt(block, int64(f.length)); err != nil {
			return err
		}
		f.digest.Add(block)
		f.length += proto.BlockSize
	}
	return nil
}

// maxBegun is how many files of several blocks may be open.
const maxBegun = 16

// block handles a Block, the done message for a slot.
func (s *incoming) block(ctx context.Context, m *proto.Block) error {
	if int(m.Slot) >= s.r.cfg.Slots {
		return faultf(proto.BadProtocol, "the sender used slot %d, but the window has only %d slots", m.Slot, s.r.cfg.Slots)
	}
	data := s.window.Bytes()[int(m.Slot)*proto.BlockSize:]
	var results []proto.Result
	for i := range m.Segments {
		seg := &m.Segments[i]
		f := s.files[seg.Entry]
		if f == nil {
			return faultf(proto.BadProtocol, "the sender sent data of entry %d, which was not requested", seg.Entry)
		}
		if err := s.accept(f, seg, len(m.Segments) == 1); err != nil {
			return err
		}
		piece := data[:seg.Length]
		data = data[seg.Length:]
		if !f.failed {
			done, err := s.store(f, seg, piece)
			if damaged := (*Fault)(nil); errors.As(err, &damaged) {
				return err
			}
			if done {
				results = append(results, s.concluded(f, err))
				f.failed = true
			}
		}
		if seg.Last {
			s.drop(f)
		}
	}
	n := m.Length()
	s.sum.Bytes += int64(n)
	s.events.Moved(int64(n))
	// Return the slot first, so that the sender has counted its bytes before the results
	// conclude files.
	if err := s.l.Send(ctx, &proto.Ack{Slot: m.Slot}); err != nil {
		return err
	}
	return s.conclude(ctx, results)
}

// accept checks that a segment is the next of its file.
func (s *incoming) accept(f *file, seg *proto.Segment, alone bool) error {
	size := f.entry.Size
	if size > proto.BlockSize && !alone {
		return faultf(proto.BadProtocol, "entry %d shares a block with others, but has %d bytes", seg.Entry, size)
	}
	if size > proto.BlockSize && !f.begun {
		if s.begun++; s.begun > maxBegun {
			return faultf(proto.BadProtocol, "the sender has more than %d large files in progress", maxBegun)
		}
		f.begun = true
		if seg.Offset == 0 {
			f.length = 0
		}
	}
	want := min(size-f.length, proto.BlockSize)
	if last := f.length+want == size; seg.Offset != f.length || uint64(seg.Length) != want || seg.Last != last {
		return faultf(proto.BadProtocol, "the sender sent %d bytes at offset %d of entry %d, which has %d bytes; want %d bytes at offset %d",
			seg.Length, seg.Offset, seg.Entry, size, want, f.length)
	}
	f.length += want
	return nil
}

// store writes a segment, and completes the file with the last one. done reports that the
// file is complete, or has failed. A wrong hash is a *Fault, which ends the transfer.
func (s *incoming) store(f *file, seg *proto.Segment, piece []byte) (done bool, err error) {
	if err = f.append(s.r.dest, seg.Offset, piece); err == nil && !seg.Last {
		return false, nil
	}
	if err == nil && f.digest.Sum() != seg.Hash {
		f.close()
		s.r.dest.Forget(f.entry.Path)
		return true, faultf(proto.BadData, "%s arrived damaged: its hash differs from the sender's", tree.Show(f.entry.Path))
	}
	if err == nil {
		err = f.part.Commit(&f.entry, s.r.cfg.Sync)
	}
	if err != nil && f.entry.Size <= proto.BlockSize {
		s.r.dest.Forget(f.entry.Path)
	}
	return true, tree.Reason(err)
}

// storeEmpty stores a file without content.
func (s *incoming) storeEmpty(f *file) error {
	_, err := s.store(f, &proto.Segment{Last: true, Hash: proto.SumOf(nil)}, nil)
	return err
}

// discard closes a file that the sender has withdrawn.
func (s *incoming) discard(ctx context.Context, m *proto.Discard) error {
	f := s.files[m.Entry]
	if f == nil {
		return faultf(proto.BadProtocol, "the sender discarded entry %d, which was not requested", m.Entry)
	}
	s.drop(f)
	if f.failed {
		return nil
	}
	err := faultf(m.Code, "the sender could not read it")
	if m.Code == proto.Changed {
		s.r.dest.Forget(f.entry.Path)
		err.Text = "the file changed while it was sent"
	}
	return s.conclude(ctx, []proto.Result{s.concluded(f, err)})
}

// concluded closes and releases a file, counts it, and returns the result for the sender.
func (s *incoming) concluded(f *file, err error) proto.Result {
	f.close()
	s.r.release(f)
	s.report(entryOf(f.entry.Path, proto.File, f.entry.Size, err))
	return resultOf(f.index, err)
}

// drop forgets a file for which no more data may arrive.
func (s *incoming) drop(f *file) {
	if f.begun {
		s.begun--
	}
	delete(s.files, f.index)
}
