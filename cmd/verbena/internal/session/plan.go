package session

import (
	"context"
	"errors"
	"io/fs"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/journal"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
)

// plan decides on entries that are announced.
func (s *incoming) plan(ctx context.Context, m *proto.Entries) error {
	if m.First != s.next || uint64(m.First)+uint64(len(m.Entries)) > 1<<32-1 {
		return faultf(proto.BadProtocol, "entries from %d on are announced; %d comes next", m.First, s.next)
	}
	if len(s.files)+len(m.Entries) > proto.Outstanding {
		return faultf(proto.BadProtocol, "more than %d entries are announced and not complete", proto.Outstanding)
	}
	p := &proto.Plan{First: m.First}
	size := 0
	for i := range m.Entries {
		e := &m.Entries[i]
		item, had, err := s.decide(ctx, e)
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			item = proto.Item{Decision: proto.Refused, Code: codeOf(err), Text: proto.Cut(err.Error(), proto.MaxNote)}
		}
		// What is sent, and directories, are concluded later.
		if err != nil || item.Decision == proto.Have && e.Type != proto.Directory || item.Decision == proto.Made && e.Type != proto.Directory {
			entry := entryOf(e.Path, e.Type, e.Size, err)
			entry.Had = had
			s.report(entry)
		}
		s.next++
		if n := 32 + len(item.Text); size+n > proto.MaxMessage-64 {
			if err := s.l.Send(ctx, p); err != nil {
				return err
			}
			p, size = &proto.Plan{First: m.First + uint32(i)}, 0
		}
		p.Items = append(p.Items, item)
		size += 32 + len(item.Text)
	}
	return s.l.Send(ctx, p)
}

// decide is the decision on one entry. had reports that it was there.
func (s *incoming) decide(ctx context.Context, e *proto.Entry) (item proto.Item, had bool, err error) {
	dest := s.r.dest
	if err := tree.CheckPath(e.Path); err != nil {
		return item, false, err
	}
	if e.Type == proto.Symlink {
		if err := tree.CheckTarget(e.Path, e.Target); err != nil {
			return item, false, err
		}
	}
	if err := dest.Parents(e.Path); err != nil {
		return item, false, err
	}
	state, err := dest.Look(e)
	if err != nil {
		return item, false, err
	}
	if state == tree.Absent {
		item, err = s.make(ctx, e)
		return item, false, err
	}
	item.Decision = proto.Have
	switch {
	case state == tree.Kept:
	case e.Type == proto.Directory:
		err = dest.SetMode(e.Path, e.Mode|0o700)
	case e.Type == proto.File:
		if !s.r.isHeld(tree.PartName(e.Path)) {
			dest.Forget(e.Path)
		}
		err = dest.SetMode(e.Path, e.Mode)
	}
	return item, true, err
}

// make makes what needs no data, and otherwise asks for that.
func (s *incoming) make(ctx context.Context, e *proto.Entry) (item proto.Item, err error) {
	dest := s.r.dest
	item.Decision = proto.Made
	switch e.Type {
	case proto.Directory:
		return item, dest.MakeDir(e.Path, e.Mode)
	case proto.Symlink:
		return item, dest.MakeLink(e)
	}
	if s.r.cfg.MaxSize > 0 && e.Size > s.r.cfg.MaxSize {
		return item, faultf(proto.TooBig, "it has %d bytes; the receiver takes %d", e.Size, s.r.cfg.MaxSize)
	}
	hold, err := s.r.acquire(ctx, s, tree.PartName(e.Path))
	if err != nil {
		return item, err
	}
	f := &file{entry: *e, index: s.next, hold: hold}
	defer func() {
		if err != nil || item.Decision == proto.Made {
			f.close()
			s.r.release(f)
		}
	}()
	if e.Size == 0 {
		part, err := dest.NewPart(e.Path)
		if err != nil {
			return item, err
		}
		if err := part.Commit(e, s.r.cfg.Sync); err != nil {
			dest.Forget(e.Path)
			return item, err
		}
		return item, nil
	}
	item.Decision = proto.Send
	var have uint64
	if e.Size > proto.BlockSize {
		if err := s.resume(ctx, f); err != nil {
			return item, err
		}
		if have = f.expected; have > 0 {
			item = proto.Item{Decision: proto.Resume, Blocks: have / proto.BlockSize, Digest: f.digest.Sum()}
		}
	}
	if free := dest.Free(); free >= 0 && e.Size-have > uint64(free) {
		return item, faultf(proto.NoSpace, "it needs %d bytes more; the disk has %d left", e.Size-have, free)
	}
	s.files[s.next] = f
	return item, nil
}

// maxResumed is how many files are kept open for being resumed. Others begin again.
const maxResumed = 16

// resume looks for what an earlier transfer has left of a file.
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
	log, err := s.r.dest.Journal(f.entry.Path)
	if err != nil {
		return errors.Join(err, part.Close())
	}
	j, digest, err := journal.Resume(log, f.header(), part, func() bool { return ctx.Err() != nil })
	if err != nil {
		return errors.Join(err, part.Close())
	}
	if j.Blocks() == 0 {
		return errors.Join(part.Close(), j.Close()) // it begins again, with a new part
	}
	f.part, f.journal, f.digest, f.expected = part, j, digest, j.Blocks()*proto.BlockSize
	return nil
}
