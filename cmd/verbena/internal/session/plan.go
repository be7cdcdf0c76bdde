package session

import (
	"context"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
)

// plan decides on announced entries, and sends the decisions.
func (s *incoming) plan(ctx context.Context, m *proto.Entries) error {
	if m.First != s.next || uint64(m.First)+uint64(len(m.Entries)) > 1<<32-1 {
		return faultf(proto.BadProtocol, "the sender announced entries from %d on, want %d", m.First, s.next)
	}
	if len(s.files)+len(m.Entries) > proto.Outstanding {
		return faultf(proto.BadProtocol, "the sender announced more than %d entries before completing them", proto.Outstanding)
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
		// Files that are sent, and directories, are concluded later.
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

// decide decides on one entry. had reports that the entry was there already.
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
	if e.Type == proto.File {
		return s.decideFile(ctx, e)
	}
	state, err := dest.Stat(e)
	if err != nil {
		return item, false, err
	}
	if state == tree.Absent {
		item.Decision = proto.Made
		if e.Type == proto.Directory {
			return item, false, dest.MakeDir(e.Path, e.Mode, s.sum.Transfer)
		}
		return item, false, dest.MakeLink(e)
	}
	item.Decision = proto.Have
	if e.Type == proto.Directory {
		err = dest.ResumeDir(e.Path, e.Mode, s.sum.Transfer, s.r.Receives)
	}
	return item, true, err
}

// decideFile is decide for a file. It makes sure that no other session receives the file at
// the same time.
func (s *incoming) decideFile(ctx context.Context, e *proto.Entry) (item proto.Item, had bool, err error) {
	dest := s.r.dest
	hold, err := s.r.reserve(ctx, s, tree.PartName(e.Path))
	if err != nil {
		return item, false, err
	}
	f := &file{entry: *e, index: s.next, reservation: hold}
	defer func() {
		if s.files[f.index] != f {
			f.close()
			s.r.release(f)
		}
	}()
	switch state, err := dest.Stat(e); {
	case err != nil:
		return item, false, err
	case state == tree.Kept:
		return proto.Item{Decision: proto.Have}, true, nil
	case state == tree.Same:
		dest.Forget(e.Path)
		return proto.Item{Decision: proto.Have}, true, dest.UpdateMode(e.Path, e.Mode)
	case s.r.cfg.MaxSize > 0 && e.Size > s.r.cfg.MaxSize:
		return item, false, faultf(proto.TooBig, "the file has %d bytes; the receiver accepts at most %d", e.Size, s.r.cfg.MaxSize)
	case e.Size == 0:
		item.Decision = proto.Made
		return item, false, s.storeEmpty(f)
	}
	item.Decision = proto.Send
	if e.Size > proto.BlockSize {
		if err := s.resume(ctx, f); err != nil {
			return item, false, err
		}
		if f.length > 0 {
			item = proto.Item{Decision: proto.Resume, Length: f.length, Hash: f.digest.Sum()}
		}
	}
	if free := dest.FreeBytes(); free >= 0 && e.Size-f.length > uint64(free) {
		return item, false, faultf(proto.NoSpace, "the file needs %d more bytes; the disk has only %d free", e.Size-f.length, free)
	}
	s.files[f.index] = f
	return item, false, nil
}
