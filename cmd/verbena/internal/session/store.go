package session

import (
	"context"
	"errors"
	"sync"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/journal"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
)

// file is an entry whose data is wanted.
type file struct {
	entry proto.Entry
	index uint32
	hold  *hold

	// These belong to the loop.
	expected uint64 // the offset of the next segment
	moved    bool   // a segment has come
	begun    bool   // it counts among those that are open

	// These are set by the loop before the first segment is queued, and belong to settle
	// from then on; store writes to part. Files of one block have none of them.
	part    *tree.Part
	journal *journal.Journal
	digest  proto.Digest

	reported bool // belongs to settle: its Result has been sent

	mu     sync.Mutex
	failed error // the first
}

func (f *file) header() journal.Header {
	return journal.Header{Path: f.entry.Path, Size: f.entry.Size, Modified: f.entry.Modified}
}

// open makes the part and the journal of a file that begins.
func (f *file) open(dest *tree.Dest) error {
	part, err := dest.NewPart(f.entry.Path)
	if err != nil {
		return err
	}
	log, err := dest.Journal(f.entry.Path)
	if err != nil {
		return errors.Join(err, part.Close())
	}
	if f.journal, err = journal.New(log, f.header()); err != nil {
		return errors.Join(err, part.Close())
	}
	f.part = part
	return nil
}

func (f *file) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed == nil {
		f.failed = err
	}
}

func (f *file) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// close lets go of the files. What has arrived stays, for a transfer that resumes.
func (f *file) close() {
	if f.part != nil {
		_ = f.part.Close()
	}
	if f.journal != nil {
		_ = f.journal.Close()
	}
}

// store checks a block, and writes its data to files. Several run at a time.
func (s *incoming) store(j *job) {
	data := s.window.Bytes()[j.slot*proto.BlockSize:][:j.block.Length()]
	if proto.SumOf(data) != j.block.Hash {
		j.damaged = true
		return
	}
	for i := range j.block.Segments {
		seg, f := &j.block.Segments[i], j.files[i]
		piece := data[:seg.Length]
		data = data[seg.Length:]
		switch {
		case f.entry.Size <= proto.BlockSize:
			j.errs[i] = s.storeWhole(f, piece)
		case f.failure() == nil:
			if _, err := f.part.WriteAt(piece, int64(seg.Offset)); err != nil {
				f.fail(err)
			}
		}
	}
}

// storeWhole writes a file that came in one block.
func (s *incoming) storeWhole(f *file, data []byte) error {
	dest := s.r.dest
	part, err := dest.NewPart(f.entry.Path)
	if err != nil {
		return err
	}
	if _, err = part.Write(data); err != nil {
		_ = part.Close()
	} else {
		err = part.Commit(&f.entry, s.r.cfg.Sync)
	}
	if err != nil {
		dest.Forget(f.entry.Path)
	}
	return err
}

// settleAll concludes the jobs, in order.
func (s *incoming) settleAll(ctx context.Context) {
	for j := range s.order {
		<-j.done
		results := s.settle(j)
		if ctx.Err() == nil { // otherwise only what was kept is let go of
			err := s.giveBack(ctx, j) // first: what the results conclude is counted by then
			if err == nil {
				err = s.conclude(ctx, results)
			}
			if err != nil {
				s.cancel(err)
			}
		}
		s.pending.Done()
	}
}

// giveBack gives the slot of a job back to the sender.
func (s *incoming) giveBack(ctx context.Context, j *job) error {
	if j.slot < 0 || j.damaged {
		return nil
	}
	n := int64(j.block.Length())
	s.mu.Lock()
	s.busy[j.slot] = false
	s.sum.Bytes += n
	s.mu.Unlock()
	s.events.Moved(n)
	return s.l.Send(ctx, &proto.Ack{Slots: []uint16{uint16(j.slot)}})
}

// settle returns what became of the files that a job concludes.
func (s *incoming) settle(j *job) (results []proto.Result) {
	if j.damaged {
		s.cancel(faultf(proto.BadData, "a block arrived damaged: its hash is not the one that the sender tells"))
	}
	for i, f := range j.files {
		reported := f.reported
		var err error
		done := false
		switch {
		case reported:
		case j.damaged:
			f.close()
		case j.slot < 0:
			done, err = true, s.discarded(f, j.discard)
		case f.entry.Size <= proto.BlockSize:
			done, err = true, j.errs[i]
		default:
			done, err = s.settlePiece(j, f, &j.block.Segments[0])
		}
		if done {
			f.reported = true
			results = append(results, resultOf(f.index, err))
			s.report(entryOf(f.entry.Path, proto.File, f.entry.Size, err))
		}
		if done || j.damaged {
			s.r.release(f)
		}
	}
	return results
}

// discarded closes a file that the sender has taken back.
func (s *incoming) discarded(f *file, code proto.Code) error {
	f.close()
	if code == proto.Changed {
		s.r.dest.Forget(f.entry.Path)
		return faultf(code, "the file changed while it was sent")
	}
	return faultf(code, "the sender could not read it")
}

// settlePiece notes a block of a larger file, and with its last one completes it.
func (s *incoming) settlePiece(j *job, f *file, seg *proto.Segment) (done bool, err error) {
	err = f.failure()
	if err == nil && j.restart {
		f.digest = proto.Digest{}
		err = f.journal.Reset()
	}
	if err == nil && !seg.Last {
		f.digest.Add(j.block.Hash)
		if err = f.journal.Append(j.block.Hash); err == nil {
			return false, nil
		}
	}
	if err != nil {
		err = tree.Reason(err)
		f.fail(err)
		f.close()
		return true, err
	}
	f.digest.Add(j.block.Hash)
	_ = f.journal.Close()
	if f.digest.Sum() != seg.Digest {
		_ = f.part.Close()
		s.r.dest.Forget(f.entry.Path)
		return true, faultf(proto.BadData, "it arrived damaged: its hash is not the one that the sender tells")
	}
	if err := f.part.Commit(&f.entry, s.r.cfg.Sync); err != nil {
		return true, err
	}
	s.r.dest.Forget(f.entry.Path) // the journal
	return true, nil
}
