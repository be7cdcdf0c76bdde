package session

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/link"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/test/soak"
)

// attacker is a sender that keeps to nothing.
type attacker struct {
	t       *testing.T
	b       *fixture
	l       *link.Link
	served  chan outcome
	window  *mmap.Map
	memory  *mmap.Map
	welcome *proto.Welcome
}

// attack connects to a receiver, and gets through the handshake.
func attack(t *testing.T, b *fixture, r *Receiver) *attacker {
	t.Helper()
	from, to := b.links()
	a := &attacker{t: t, b: b, l: from, served: make(chan outcome, 1)}
	go func() {
		var o outcome
		o.notes = &eventRecorder{}
		o.Summary, o.err = r.Serve(context.Background(), to, o.notes)
		b.end(to)
		a.served <- o
	}()
	var err error
	a.welcome, err = NewSender(SenderConfig{}).handshake(t.Context(), from)
	require.NoError(t, err)
	a.window, err = mmap.FromKey(b.dev, a.welcome.Addr, int(a.welcome.Length), a.welcome.RKey, mmap.RemoteWrite)
	require.NoError(t, err)
	a.memory, err = mmap.Alloc(b.dev, int(a.welcome.Length), mmap.LocalReadOnly)
	require.NoError(t, err)
	return a
}

func (a *attacker) send(m proto.Message) {
	a.t.Helper()
	_ = a.l.Send(a.t.Context(), m) // the receiver may have ended it
}

// block writes data to a slot, and says so.
func (a *attacker) block(slot uint16, data []byte, segments ...proto.Segment) {
	a.t.Helper()
	at := int(slot) * proto.BlockSize
	for i, n := 0, 0; i < len(segments); i++ {
		end := n + int(segments[i].Length)
		if segments[i].Last && segments[i].Offset == 0 && end <= len(data) {
			segments[i].Hash = proto.SumOf(data[n:end])
		}
		n = end
	}
	m := &proto.Block{Slot: slot, Segments: segments}
	w := link.Write{}
	if at+len(data) <= a.memory.Len() {
		copy(a.memory.Bytes()[at:], data)
		w = link.Write{Source: a.memory, From: at, Target: a.window, To: at, Length: len(data)}
	}
	_, _ = a.l.WriteSend(a.t.Context(), w, m)
}

// announce announces one file, and returns what the receiver wants of it.
func (a *attacker) announce(index uint32, e proto.Entry) proto.Item {
	a.t.Helper()
	a.send(&proto.Entries{First: index, Entries: []proto.Entry{e}})
	p, err := expect[*proto.Plan](a.t.Context(), a.l)
	require.NoError(a.t, err)
	return p.Items[0]
}

// end waits for the receiver to have ended, and returns how.
func (a *attacker) end() outcome {
	a.t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	// An honest receiver says why, and then waits for this end to close.
	for {
		if _, err := next(ctx, a.l); err != nil {
			break
		}
	}
	a.b.end(a.l)
	require.NoError(a.t, a.memory.Close())
	select {
	case o := <-a.served:
		return o
	case <-ctx.Done():
		require.Fail(a.t, "the receiver hangs")
		return outcome{}
	}
}

// leave closes the connection in the middle of the transfer.
func (a *attacker) leave() {
	a.t.Helper()
	a.b.end(a.l)
	require.NoError(a.t, a.memory.Close())
	o := <-a.served
	require.ErrorIs(a.t, o.err, link.ErrBroken)
}

func fileOf(path string, size uint64) proto.Entry {
	return proto.Entry{Path: path, Size: size, Mode: 0o600, Modified: time.Unix(1, 0)}
}

// TestHostileSender: what no sender sends ends the transfer, with the reason.
func TestHostileSender(t *testing.T) {
	b := newFixture(t)
	r, dir := receiver(t, tree.Refuse, ReceiverConfig{})
	const large = 3 * proto.BlockSize
	whole := make([]byte, proto.BlockSize)
	first := proto.Segment{Length: proto.BlockSize}
	at := func(offset, length int) proto.Segment {
		return proto.Segment{Offset: uint64(offset), Length: uint32(length), Last: offset+length == large}
	}
	for name, c := range map[string]struct {
		code proto.Code
		do   func(a *attacker)
	}{
		"hello again":    {proto.BadProtocol, func(a *attacker) { a.send(&proto.Hello{}) }},
		"receiver's":     {proto.BadProtocol, func(a *attacker) { a.send(&proto.Ack{}) }},
		"gap in entries": {proto.BadProtocol, func(a *attacker) { a.send(&proto.Entries{First: 1, Entries: []proto.Entry{fileOf("g", 1)}}) }},
		"unknown block":  {proto.BadProtocol, func(a *attacker) { a.block(0, []byte("x"), proto.Segment{Entry: 9, Length: 1, Last: true}) }},
		"slot out of range": {proto.BadProtocol, func(a *attacker) {
			a.announce(0, fileOf("s", 1))
			a.block(4, []byte("x"), proto.Segment{Length: 1, Last: true})
		}},
		"begun again": {proto.BadProtocol, func(a *attacker) {
			a.announce(0, fileOf("t", large))
			for off := range 2 {
				a.block(0, whole, at(off*proto.BlockSize, proto.BlockSize))
			}
			a.block(0, whole, first)
		}},
		"too long": {proto.BadProtocol, func(a *attacker) {
			a.announce(0, fileOf("l", 5))
			a.block(0, whole, proto.Segment{Length: 6, Last: true})
		}},
		"too short": {proto.BadProtocol, func(a *attacker) {
			a.announce(0, fileOf("l", 5))
			a.block(0, whole, proto.Segment{Length: 4, Last: true})
		}},
		"not last": {proto.BadProtocol, func(a *attacker) { a.announce(0, fileOf("l", 5)); a.block(0, whole, proto.Segment{Length: 5}) }},
		"offset": {proto.BadProtocol, func(a *attacker) {
			a.announce(0, fileOf("o", large))
			a.block(0, whole, at(2*proto.BlockSize, proto.BlockSize))
		}},
		"offset overflow": {proto.BadProtocol, func(a *attacker) {
			a.announce(0, fileOf("o", large))
			a.block(0, whole, proto.Segment{Offset: 1<<64 - 1, Length: 5})
		}},
		"odd piece": {proto.BadProtocol, func(a *attacker) { a.announce(0, fileOf("o", large)); a.block(0, whole, at(0, 77)) }},
		"shared block": {proto.BadProtocol, func(a *attacker) {
			a.announce(0, fileOf("o", large))
			a.announce(1, fileOf("p", 5))
			a.block(0, whole, proto.Segment{Length: 7}, proto.Segment{Entry: 1, Length: 5, Last: true})
		}},
		"again": {proto.BadProtocol, func(a *attacker) {
			a.announce(0, fileOf("again", 1))
			a.block(0, []byte("x"), proto.Segment{Length: 1, Last: true})
			a.block(1, []byte("x"), proto.Segment{Length: 1, Last: true})
		}},
		"wrong hash": {proto.BadData, func(a *attacker) {
			a.announce(0, fileOf("w", 1))
			_ = a.l.Send(a.t.Context(), &proto.Block{Segments: []proto.Segment{{Length: 1, Last: true, Hash: proto.Sum{1}}}})
		}},
		"unknown discard":  {proto.BadProtocol, func(a *attacker) { a.send(&proto.Discard{Entry: 3, Code: proto.Changed}) }},
		"unknown dirs":     {proto.BadProtocol, func(a *attacker) { a.send(&proto.Dirs{Dirs: []proto.DirEntry{{Entry: 3, Path: "x"}}}) }},
		"early end":        {proto.BadProtocol, func(a *attacker) { a.announce(0, fileOf("e", 1)); a.send(&proto.End{Entries: 1}) }},
		"wrong end":        {proto.BadProtocol, func(a *attacker) { a.send(&proto.End{Entries: 7}) }},
		"early ID":         {proto.BadProtocol, func(a *attacker) { a.send(&proto.ID{Text: "x"}) }},
		"text behind file": {proto.BadProtocol, func(a *attacker) { a.announce(0, fileOf("x", 0)); a.send(&proto.Text{Text: "x"}) }},
		"too many entries": {proto.BadProtocol, func(a *attacker) {
			for i := range uint32(proto.Outstanding/proto.MaxEntries + 1) {
				m := &proto.Entries{First: i * proto.MaxEntries}
				for k := range uint32(proto.MaxEntries) {
					m.Entries = append(m.Entries, fileOf("many"+string(rune('a'+i))+strings.Repeat("x", int(k%7))+string(rune('A'+k)), 1))
				}
				a.send(m)
			}
		}},
		"too many begun": {proto.BadProtocol, func(a *attacker) {
			for i := range uint32(maxBegun + 1) {
				a.announce(i, fileOf("begun"+string(rune('a'+i)), large))
			}
			for i := range uint32(maxBegun + 1) {
				a.block(uint16(i%4), whole, proto.Segment{Entry: i, Length: proto.BlockSize})
				if _, err := expect[*proto.Ack](a.t.Context(), a.l); err != nil {
					return
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a := attack(t, b, r)
			c.do(a)
			o := a.end()
			var f *Fault
			require.ErrorAs(t, o.err, &f)
			assert.Equal(t, c.code, f.Code, "%v", o.err)
			assert.False(t, f.Peer)
		})
	}
	// All that they left is in the folder for what is incomplete, but for two small files.
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range list {
		assert.Contains(t, []string{tree.WorkDir, "again", "x"}, e.Name())
	}
}

// TestMalformed: bytes that are no message.
func TestMalformed(t *testing.T) {
	b := newFixture(t)
	r, _ := receiver(t, tree.Refuse, ReceiverConfig{})
	from, to := b.links()
	served := make(chan error, 1)
	go func() {
		_, err := r.Serve(context.Background(), to, &eventRecorder{})
		b.end(to)
		served <- err
	}()
	require.NoError(t, from.Send(t.Context(), &proto.Proof{})) // no Hello
	_, err := next(t.Context(), from)
	var f *Fault
	require.ErrorAs(t, err, &f)
	assert.Equal(t, proto.BadProtocol, f.Code)
	b.end(from)
	require.ErrorAs(t, <-served, &f)
}

// TestEscapes: names that lead elsewhere are refused one by one, and nothing is written.
func TestEscapes(t *testing.T) {
	b := newFixture(t)
	outside := t.TempDir()
	dir := filepath.Join(outside, "into")
	r := receiverIn(t, dir, tree.Overwrite, ReceiverConfig{})
	require.NoError(t, os.WriteFile(filepath.Join(outside, "victim"), []byte("mine"), 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "door")))
	a := attack(t, b, r)
	index := uint32(0)
	for _, e := range []proto.Entry{
		fileOf("../victim", 4), fileOf(filepath.Join(outside, "victim"), 4), fileOf("door/victim", 4), fileOf("door/new", 4), fileOf("a/../../victim", 4),
		fileOf(".verbena/x", 4), fileOf("", 4), fileOf(".", 0), fileOf("..", 0), fileOf("x\x00y", 4), fileOf("missing/x", 4),
		{Type: proto.Directory, Path: "../d", Mode: 0o777}, {Type: proto.Directory, Path: "door/d", Mode: 0o777}, {Type: proto.Directory, Path: "door", Mode: 0o777},
		{Type: proto.Symlink, Path: "l", Target: outside}, {Type: proto.Symlink, Path: "l", Target: "../victim"}, {Type: proto.Symlink, Path: "door/l", Target: "x"},
		{Type: proto.Symlink, Path: "../l", Target: "x"},
	} {
		e.Modified = time.Unix(1, 0)
		item := a.announce(index, e)
		assert.Equal(t, proto.Refused, item.Decision, "%q -> %q", e.Path, e.Target)
		index++
	}
	a.send(&proto.Dirs{Dirs: []proto.DirEntry{{Path: "..", Modified: time.Unix(1, 0)}, {Path: "door", Modified: time.Unix(1, 0)}, {Path: outside, Modified: time.Unix(1, 0)}}})
	results, err := expect[*proto.Results](t.Context(), a.l)
	require.NoError(t, err)
	for _, res := range results.Results {
		assert.Equal(t, proto.UnsafePath, res.Code)
	}
	a.leave()
	list, err := os.ReadDir(outside)
	require.NoError(t, err)
	assert.Len(t, list, 2)
	info, err := os.Stat(outside)
	require.NoError(t, err)
	assert.NotZero(t, info.Mode().Perm())
	got, err := os.ReadFile(filepath.Join(outside, "victim"))
	require.NoError(t, err)
	assert.Equal(t, "mine", string(got))
	list, err = os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, list, 2, "the door, and the folder for what is incomplete")
}

// A sender completes no directory that it has not made: one that exists, one that it did not
// announce, and one of a transfer that is live.
func TestDirectoriesOfOthers(t *testing.T) {
	b := newFixture(t)
	r, dir := receiver(t, tree.Refuse, ReceiverConfig{})
	when := time.Unix(1, 0)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "private"), 0o700))
	honest := attack(t, b, r)
	folder := func(path string, mode uint16) proto.Entry {
		return proto.Entry{Type: proto.Directory, Path: path, Mode: mode, Modified: when}
	}
	assert.Equal(t, proto.Made, honest.announce(0, folder("made", 0o700)).Decision)
	a := attack(t, b, r)
	assert.Equal(t, proto.Made, a.announce(0, folder("mine", 0o577)).Decision)
	complete := func(path string) {
		t.Helper()
		a.send(&proto.Dirs{Dirs: []proto.DirEntry{{Path: path, Mode: 0o577, Modified: when}}})
		results, err := expect[*proto.Results](t.Context(), a.l)
		require.NoError(t, err)
		assert.Equal(t, proto.OK, results.Results[0].Code)
	}
	for _, path := range []string{"private", "made", "mine"} {
		complete(path)
	}
	assert.Equal(t, proto.Have, a.announce(1, folder("private", 0o777)).Decision)
	assert.Equal(t, proto.Have, a.announce(2, folder("made", 0o777)).Decision)
	for _, path := range []string{"private", "made"} {
		complete(path)
		info, err := os.Lstat(filepath.Join(dir, path))
		require.NoError(t, err)
		assert.Equal(t, fs.FileMode(0o700), info.Mode().Perm(), path)
		assert.False(t, info.ModTime().Equal(when), path)
	}
	info, err := os.Lstat(filepath.Join(dir, "mine"))
	require.NoError(t, err)
	assert.Zero(t, info.Mode().Perm()&0o200, "its own is read-only now")
	assert.True(t, info.ModTime().Equal(when))
	a.leave()
	honest.leave()
}

// A sender makes a directory and leaves. It then completes no directory that has taken its place.
func TestDirectoryReplacedMeanwhile(t *testing.T) {
	b := newFixture(t)
	r, dir := receiver(t, tree.Refuse, ReceiverConfig{})
	at := filepath.Join(dir, "x")
	folder := proto.Entry{Type: proto.Directory, Path: "x", Mode: 0o500, Modified: time.Unix(1, 0)}
	a := attack(t, b, r)
	assert.Equal(t, proto.Made, a.announce(0, folder).Decision)
	a.leave()
	require.NoError(t, os.Rename(at, at+".theirs"))
	require.NoError(t, os.Mkdir(at, 0o700))
	a = attack(t, b, r)
	assert.Equal(t, proto.Have, a.announce(0, folder).Decision)
	a.send(&proto.Dirs{Dirs: []proto.DirEntry{{Path: "x", Mode: folder.Mode, Modified: folder.Modified}}})
	results, err := expect[*proto.Results](t.Context(), a.l)
	require.NoError(t, err)
	assert.Equal(t, proto.OK, results.Results[0].Code)
	info, err := os.Lstat(at)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o700), info.Mode().Perm())
	assert.False(t, info.ModTime().Equal(folder.Modified))
	a.leave()
}

// TestHostileReceiver: what no receiver sends ends the transfer, with the reason.
func TestHostileReceiver(t *testing.T) {
	b := newFixture(t)
	s := []tree.Source{{Local: filepath.Join(t.TempDir(), "f"), Name: "f"}}
	write(t, s[0].Local, make([]byte, 9*proto.BlockSize))
	for name, do := range map[string]func(l *link.Link) error{
		"plan for nothing": func(l *link.Link) error { return l.Send(t.Context(), &proto.Plan{First: 7, Items: []proto.Item{{}}}) },
		"plan twice":       func(l *link.Link) error { return l.Send(t.Context(), &proto.Plan{Items: []proto.Item{{}, {}}}) },
		"resume at the end": func(l *link.Link) error {
			return l.Send(t.Context(), &proto.Plan{Items: []proto.Item{{Decision: proto.Resume, Length: 9 * proto.BlockSize}}})
		},
		"resume beyond": func(l *link.Link) error {
			return l.Send(t.Context(), &proto.Plan{Items: []proto.Item{{Decision: proto.Resume, Length: 1<<64 - 1}}})
		},
		"early result": func(l *link.Link) error { return l.Send(t.Context(), &proto.Results{Results: []proto.Result{{}}}) },
		"ack for none": func(l *link.Link) error { return l.Send(t.Context(), &proto.Ack{}) },
		"ack too far":  func(l *link.Link) error { return l.Send(t.Context(), &proto.Ack{Slot: 5}) },
		"sender's":     func(l *link.Link) error { return l.Send(t.Context(), &proto.Text{Text: "x"}) },
		"hello":        func(l *link.Link) error { return l.Send(t.Context(), &proto.Hello{}) },
		"two verdicts": func(l *link.Link) error {
			return errors.Join(l.Send(t.Context(), &proto.Verdict{}), l.Send(t.Context(), &proto.Verdict{}), l.Send(t.Context(), &proto.Verdict{}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := b.links()
			sent := make(chan error, 1)
			go func() {
				_, err := NewSender(SenderConfig{Sources: s, Events: &eventRecorder{}}).Run(t.Context(), from)
				b.end(from)
				sent <- err
			}()
			window, err := mmap.Alloc(b.dev, 2*proto.BlockSize, mmap.LocalReadWrite|mmap.RemoteWrite)
			require.NoError(t, err)
			key, err := window.ExportKey(b.dev.DefaultPD())
			require.NoError(t, err)
			_, err = expect[*proto.Hello](t.Context(), to)
			require.NoError(t, err)
			require.NoError(t, to.Send(t.Context(), &proto.Challenge{Version: proto.Version}))
			_, err = expect[*proto.Proof](t.Context(), to)
			require.NoError(t, err)
			require.NoError(t, to.Send(t.Context(), &proto.Welcome{Addr: window.Addr(), Length: uint32(window.Len()), RKey: key}))
			_, err = expect[*proto.Entries](t.Context(), to)
			require.NoError(t, err)
			require.NoError(t, do(to))
			for err == nil {
				_, err = next(t.Context(), to) // blocks that were under way
			}
			var told *Fault
			require.ErrorAs(t, err, &told)
			assert.Equal(t, proto.BadProtocol, told.Code)
			b.end(to)
			require.NoError(t, window.Close())
			var f *Fault
			require.ErrorAs(t, <-sent, &f)
			assert.Equal(t, proto.BadProtocol, f.Code, f.Text)
		})
	}
}

// TestSoakHostile: a sender at random. The receiver neither panics nor hangs, and an honest
// sender gets its files through afterwards.
func TestSoakHostile(t *testing.T) {
	b := newFixture(t)
	r, _ := receiver(t, tree.Overwrite, ReceiverConfig{})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	names := []string{"a", "b", "a/b", "..", "d", "d/e", "/x", "d/../a"}
	name := func() string { return names[rng.IntN(len(names))] }
	for range soak.Rounds(t, 25, 5000) {
		a := attack(t, b, r)
		next := uint32(0)
		for range 1 + rng.IntN(30) {
			index := uint32(rng.IntN(int(next) + 1))
			switch rng.IntN(12) {
			case 0, 1, 2:
				m := &proto.Entries{First: next}
				for range 1 + rng.IntN(4) {
					m.Entries = append(m.Entries, proto.Entry{Type: proto.EntryType(rng.IntN(3)), Path: name(), Target: name(), Mode: uint16(rng.IntN(0o1000)),
						Size: uint64(rng.IntN(3)) * (proto.BlockSize - 1), Modified: time.Unix(int64(rng.IntN(3)), 0)})
					next++
				}
				a.send(m)
			case 3, 4, 5, 6:
				size := []int{1, proto.BlockSize - 1, proto.BlockSize}[rng.IntN(3)]
				off := uint64(rng.IntN(2)) * proto.BlockSize
				a.block(uint16(rng.IntN(5)), make([]byte, size), proto.Segment{Entry: index, Offset: off, Length: uint32(size), Last: rng.IntN(2) == 0})
			case 7:
				a.send(&proto.Discard{Entry: index, Code: proto.Changed})
			case 8:
				a.send(&proto.Dirs{Dirs: []proto.DirEntry{{Entry: index, Path: name(), Mode: uint16(rng.IntN(0o1000))}}})
			case 9:
				a.send(&proto.Text{Text: name()})
			case 10:
				a.send(&proto.End{Entries: next})
			case 11:
				a.send(&proto.ID{Text: name()})
			}
		}
		a.send(&proto.Hello{}) // which ends it, if nothing has
		require.Error(t, a.end().err)
	}
	s := []tree.Source{{Local: filepath.Join(t.TempDir(), "f"), Name: "f"}}
	write(t, s[0].Local, make([]byte, 2*proto.BlockSize))
	sent, received := b.run(t.Context(), r, SenderConfig{Sources: s})
	good(t, sent, received, 1)
}

// TestEndBehindDiscard: a sender ends right behind a file that it takes back, which is still
// to be settled then. That is no fault: senders do so when the last file could not be stored.
func TestEndBehindDiscard(t *testing.T) {
	b := newFixture(t)
	r, _ := receiver(t, tree.Refuse, ReceiverConfig{})
	from, to := b.links()
	hold := make(chan struct{})
	n := &eventRecorder{onMoved: func(int64) { <-hold }} // settling does not get past the first block
	served := make(chan error, 1)
	go func() {
		_, err := r.Serve(t.Context(), to, n)
		served <- err
	}()
	welcome, err := NewSender(SenderConfig{}).handshake(t.Context(), from)
	require.NoError(t, err)
	a := &attacker{t: t, b: b, l: from, welcome: welcome}
	a.window, err = mmap.FromKey(b.dev, welcome.Addr, int(welcome.Length), welcome.RKey, mmap.RemoteWrite)
	require.NoError(t, err)
	a.memory, err = mmap.Alloc(b.dev, int(welcome.Length), mmap.LocalReadOnly)
	require.NoError(t, err)
	require.Equal(t, proto.Send, a.announce(0, fileOf("f", 3*proto.BlockSize)).Decision)
	a.block(0, make([]byte, proto.BlockSize), proto.Segment{Length: proto.BlockSize})
	a.send(&proto.Discard{Entry: 0, Code: proto.Unreadable})
	a.send(&proto.End{Entries: 1})
	last, err := from.WriteSend(t.Context(), link.Write{}, &proto.ID{Text: "me"})
	require.NoError(t, err)
	require.NoError(t, from.Wait(t.Context(), last), "the receiver's device has the end, and all before it")
	close(hold)
	_, err = expect[*proto.Ack](t.Context(), from)
	require.NoError(t, err)
	results, err := expect[*proto.Results](t.Context(), from)
	require.NoError(t, err)
	assert.Equal(t, proto.Unreadable, results.Results[0].Code)
	verdict, err := expect[*proto.Verdict](t.Context(), from)
	require.NoError(t, err)
	assert.False(t, verdict.Good)
	assert.EqualValues(t, 1, verdict.Failed)
	_, err = expect[*proto.Key](t.Context(), from)
	require.NoError(t, err)
	b.end(from)
	require.NoError(t, <-served)
	b.end(to)
	require.NoError(t, a.memory.Close())
}
