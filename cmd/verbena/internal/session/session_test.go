package session

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/link"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rdma/rdmatest"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is for what has to happen.
const patience = 2 * time.Minute

// fixture is both ends of links, in one process, on one engine.
type fixture struct {
	t            *testing.T
	dev          verbs.Device
	engine       *pe.Engine
	from, to     *rdma.Connections
	hubFrom, hub *link.Hub
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	b := &fixture{t: t}
	var err error
	b.dev, err = device.Open("soft-lo")
	require.NoError(t, err)
	b.engine = pe.New(pe.Config{})
	for _, end := range []struct {
		r      **rdma.Connections
		h      **link.Hub
		writer bool
	}{{&b.from, &b.hubFrom, true}, {&b.to, &b.hub, false}} {
		*end.r, err = rdma.New(b.dev, rdma.Config{Engine: b.engine, MaxConnections: 4})
		require.NoError(t, err)
		*end.h, err = link.NewHub(*end.r, 4, end.writer)
		require.NoError(t, err)
		require.NoError(t, (*end.r).Start())
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.engine.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		assert.ErrorIs(t, <-ended, context.Canceled)
		assert.NoError(t, b.engine.Close())
		assert.NoError(t, b.dev.Close())
	})
	return b
}

// links makes a connection.
func (b *fixture) links() (sender, receiver *link.Link) {
	b.t.Helper()
	err := await.Func(b.t.Context(), b.engine, func() error {
		s, r, err := rdmatest.Connect(b.from, b.to)
		if err != nil {
			return err
		}
		if sender, err = b.hubFrom.Open(s); err != nil {
			return err
		}
		receiver, err = b.hub.Open(r)
		return err
	})
	require.NoError(b.t, err)
	for _, l := range []*link.Link{sender, receiver} {
		require.NoError(b.t, l.Ready(b.t.Context()))
	}
	return sender, receiver
}

// end closes a link, so that nothing of it is left.
func (b *fixture) end(l *link.Link) {
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	assert.NoError(b.t, l.Close(ctx))
}

// eventRecorder keeps what is reported.
type eventRecorder struct {
	mu      sync.Mutex
	entries map[string]Entry
	texts   []string
	lost    error // of a text
	moved   int64
	onMoved func(int64)
}

func (n *eventRecorder) Moved(bytes int64) {
	n.mu.Lock()
	n.moved += bytes
	moved, f := n.moved, n.onMoved
	n.mu.Unlock()
	if f != nil {
		f(moved)
	}
}

func (n *eventRecorder) Entry(e Entry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.entries == nil {
		n.entries = map[string]Entry{}
	}
	n.entries[e.Path] = e
}

func (n *eventRecorder) Text(s string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.texts = append(n.texts, s)
	return n.lost
}

func (n *eventRecorder) entry(path string) Entry {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.entries[path]
}

// receiver makes one, and its folder.
func receiver(t *testing.T, policy tree.Policy, cfg ReceiverConfig) (*Receiver, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "into")
	return receiverIn(t, dir, policy, cfg), dir
}

func receiverIn(t *testing.T, dir string, policy tree.Policy, cfg ReceiverConfig) *Receiver {
	t.Helper()
	dest, err := tree.OpenDest(dir, policy)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, dest.Close()) })
	cfg.Slots = 4
	return NewReceiver(dest, cfg)
}

// outcome is how an end has ended.
type outcome struct {
	Summary
	err   error
	notes *eventRecorder
}

// run has both ends do a transfer, which the sender gives up when ctx ends.
func (b *fixture) run(ctx context.Context, r *Receiver, cfg SenderConfig) (sent, received outcome) {
	b.t.Helper()
	from, to := b.links()
	sent.notes, received.notes = &eventRecorder{}, &eventRecorder{}
	if cfg.Events != nil {
		sent.notes = cfg.Events.(*eventRecorder)
	}
	cfg.Events = sent.notes
	var ends sync.WaitGroup
	ends.Go(func() {
		received.Summary, received.err = r.Serve(b.t.Context(), to, received.notes)
		b.end(to)
	})
	sent.Summary, sent.err = NewSender(cfg).Run(ctx, from)
	b.end(from)
	ends.Wait()
	return sent, received
}

// sources makes a tree and returns its root.
func sources(t *testing.T) []tree.Source {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tree")
	rng := rand.New(rand.NewPCG(1, 2))
	for name, size := range map[string]int{"a/one": 1, "a/empty": 0, "a/block": proto.BlockSize, "a/more": proto.BlockSize + 1, "a/b/three": 3 * proto.BlockSize, "large": 7*proto.BlockSize + 12345} {
		write(t, filepath.Join(dir, name), random(rng, size))
	}
	for i := range 50 {
		write(t, filepath.Join(dir, "small", fmt.Sprint(i)), random(rng, rng.IntN(100_000)))
	}
	require.NoError(t, os.Symlink("../large", filepath.Join(dir, "a/link")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "hollow"), 0o700))
	require.NoError(t, os.Chmod(filepath.Join(dir, "small"), 0o550))
	require.NoError(t, os.Chmod(filepath.Join(dir, "large"), 0o400))
	require.NoError(t, os.Chtimes(filepath.Join(dir, "a"), time.Time{}, time.Unix(1_500_000_000, 123)))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "small"), 0o700) })
	return []tree.Source{{Local: dir, Name: "tree"}}
}

func random(rng *rand.Rand, n int) []byte {
	b := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		v := rng.Uint64()
		for k := range 8 {
			b[i+k] = byte(v >> (8 * k))
		}
	}
	return b[:n]
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, b, 0o640))
}

// same checks that what was sent is there, with modes and times.
func same(t *testing.T, s []tree.Source, dir string) {
	t.Helper()
	for _, source := range s {
		files := tree.NewFiles([]tree.Source{source})
		defer files.Close()
		require.NoError(t, files.Walk(t.Context(), func(f tree.Found) error {
			there := filepath.Join(dir, f.Path)
			info, err := os.Lstat(there)
			if !assert.NoError(t, err) {
				return nil
			}
			switch f.Type {
			case proto.Symlink:
				target, err := os.Readlink(there)
				assert.NoError(t, err)
				assert.Equal(t, f.Target, target)
				return nil
			case proto.File:
				want, err := os.ReadFile(f.Local)
				require.NoError(t, err)
				got, err := os.ReadFile(there)
				require.NoError(t, err)
				assert.True(t, string(want) == string(got), "%s differs", f.Path)
			}
			assert.EqualValues(t, f.Mode, info.Mode().Perm(), f.Path)
			assert.True(t, info.ModTime().Equal(f.Modified), "time of %s: %v, not %v", f.Path, info.ModTime(), f.Modified)
			return nil
		}))
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "tree/small"), 0o700) }) // so that it can be removed
}

// good checks that both ends are content.
func good(t *testing.T, sent, received outcome, entries int) {
	t.Helper()
	require.NoError(t, sent.err)
	require.NoError(t, received.err)
	assert.True(t, sent.Complete && received.Complete)
	assert.Equal(t, entries, sent.Entries)
	assert.Equal(t, entries, received.Entries)
	assert.Zero(t, sent.Failed)
	assert.Zero(t, received.Failed)
	assert.Equal(t, sent.Key, received.Key)
	assert.NotEmpty(t, sent.Key)
	assert.Equal(t, sent.Bytes, received.Bytes)
}

func TestTree(t *testing.T) {
	b := newFixture(t)
	s := sources(t)
	r, dir := receiver(t, tree.Refuse, ReceiverConfig{})
	total, err := tree.Size(t.Context(), s)
	require.NoError(t, err)
	sent, received := b.run(t.Context(), r, SenderConfig{Sources: s, ID: "me"})
	const entries = 1 + 6 + 3 + 50 + 1 + 1 // the root, files, folders, small ones, the link, the hollow one
	good(t, sent, received, entries)
	assert.Equal(t, total, sent.Bytes)
	assert.Equal(t, total, sent.notes.moved)
	assert.Equal(t, "me", received.ID)
	assert.Len(t, received.notes.entries, entries)
	same(t, s, dir)

	// Once more: nothing is sent.
	sent, received = b.run(t.Context(), r, SenderConfig{Sources: s})
	good(t, sent, received, entries)
	assert.Zero(t, sent.Bytes)
	assert.Equal(t, total, sent.notes.moved)
	same(t, s, dir)
}

func TestText(t *testing.T) {
	b := newFixture(t)
	r, _ := receiver(t, tree.Refuse, ReceiverConfig{Key: "the key"})
	text := "hello, wörld\n"
	sent, received := b.run(t.Context(), r, SenderConfig{Text: &text, ID: "me"})
	good(t, sent, received, 0)
	assert.Equal(t, []string{text}, received.notes.texts)
	assert.Equal(t, "the key", sent.Key)
}

// TestTextLost: a message that the receiver cannot print has not arrived.
func TestTextLost(t *testing.T) {
	b := newFixture(t)
	r, _ := receiver(t, tree.Refuse, ReceiverConfig{})
	from, to := b.links()
	served := make(chan error, 1)
	go func() {
		_, err := r.Serve(t.Context(), to, &eventRecorder{lost: &os.PathError{Op: "write", Path: "standard output", Err: syscall.ENOSPC}})
		served <- err
	}()
	text := "hello"
	sum, err := NewSender(SenderConfig{Text: &text, Events: &eventRecorder{}}).Run(t.Context(), from)
	var fault *Fault
	require.ErrorAs(t, err, &fault)
	assert.Equal(t, proto.NoSpace, fault.Code)
	assert.True(t, fault.Peer)
	assert.False(t, sum.Complete)
	b.end(from)
	require.ErrorContains(t, <-served, "cannot print")
	b.end(to)
}

func TestLimit(t *testing.T) {
	b := newFixture(t)
	s := []tree.Source{{Local: filepath.Join(t.TempDir(), "f"), Name: "f"}}
	write(t, s[0].Local, random(rand.New(rand.NewPCG(3, 4)), 3*proto.BlockSize/2))
	r, dir := receiver(t, tree.Refuse, ReceiverConfig{})
	began := time.Now()
	sent, received := b.run(t.Context(), r, SenderConfig{Sources: s, Limit: NewLimiter(3 << 20)})
	good(t, sent, received, 1)
	same(t, s, dir)
	// All but the first piece and a tenth of a second's worth cannot take less than its share
	// of time, however fast the machine is.
	assert.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
}

func TestLimiter(t *testing.T) {
	assert.Equal(t, 77, NewLimiter(0).piece(77))
	require.NoError(t, NewLimiter(0).wait(t.Context(), math.MaxInt))
	l := NewLimiter(1 << 20)
	assert.Equal(t, 1<<20/20, l.piece(1<<20))
	require.NoError(t, l.wait(t.Context(), 1<<30))
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	require.ErrorIs(t, l.wait(ctx, 1), stop)
}

func TestSecrets(t *testing.T) {
	b := newFixture(t)
	one, other := []byte("a secret of enough length"), []byte("another one of some length")
	s := sources(t)
	for name, c := range map[string]struct {
		from, to []byte
		code     proto.Code
		finder   string // who finds it
	}{
		"same":         {one, one, proto.OK, ""},
		"other":        {one, other, proto.WrongSecret, "receiver"},
		"not sender":   {nil, one, proto.NeedSecret, "receiver"},
		"not receiver": {one, nil, proto.WrongSecret, "receiver"},
	} {
		t.Run(name, func(t *testing.T) {
			r, dir := receiver(t, tree.Refuse, ReceiverConfig{Secret: c.to})
			sent, received := b.run(t.Context(), r, SenderConfig{Sources: s, Secret: c.from})
			if c.code == proto.OK {
				good(t, sent, received, 62)
				same(t, s, dir)
				return
			}
			var at, told *Fault
			require.ErrorAs(t, received.err, &at)
			require.ErrorAs(t, sent.err, &told)
			assert.Equal(t, c.code, at.Code)
			assert.Equal(t, c.code, told.Code)
			assert.True(t, told.Peer)
			assert.False(t, at.Peer)
			list, err := os.ReadDir(dir)
			require.NoError(t, err)
			assert.Len(t, list, 1, "nothing but the folder for what is incomplete")
		})
	}
}

// TestProof: it is good for one direction, one connection and one conversation.
func TestProof(t *testing.T) {
	secret := []byte("a secret of enough length")
	hello, challenge := &Hello{Nonce: token()}, &Challenge{Nonce: token()}
	a, b := []byte("aaaa"), []byte("bbbb")
	mac := func(secret []byte, role string, h *Hello, c *Challenge, s, r []byte) proto.Token {
		t.Helper()
		p, err := proof(secret, role, h, c, s, r)
		require.NoError(t, err)
		return p
	}
	want := mac(secret, "sender", hello, challenge, a, b)
	assert.Equal(t, want, mac(secret, "sender", hello, challenge, a, b))
	for name, other := range map[string]proto.Token{
		"role":      mac(secret, "receiver", hello, challenge, a, b),
		"ends":      mac(secret, "sender", hello, challenge, b, a),
		"hello":     mac(secret, "sender", &Hello{Nonce: token()}, challenge, a, b),
		"challenge": mac(secret, "sender", hello, &Challenge{Nonce: token()}, a, b),
		"secret":    mac(secret[1:], "sender", hello, challenge, a, b),
		"none":      mac(nil, "sender", hello, challenge, a, b),
	} {
		assert.NotEqual(t, want, other, name)
	}
}

type (
	Hello     = proto.Hello
	Challenge = proto.Challenge
)

// TestResume: the connection is lost in the middle, again and again.
func TestResume(t *testing.T) {
	b := newFixture(t)
	s := []tree.Source{{Local: filepath.Join(t.TempDir(), "f"), Name: "f"}}
	const blocks = 24
	write(t, s[0].Local, random(rand.New(rand.NewPCG(5, 6)), blocks*proto.BlockSize-77))
	r, dir := receiver(t, tree.Refuse, ReceiverConfig{})
	sender := SenderConfig{Sources: s}
	lost := errors.New("lost")
	var moved int64
	for range 3 {
		ctx, cancel := context.WithCancelCause(t.Context())
		n := &eventRecorder{}
		from := int64(-1)
		n.onMoved = func(at int64) {
			if from < 0 {
				from = at
			}
			if at-from >= 4*proto.BlockSize {
				cancel(lost)
			}
		}
		sender.Events = n
		sent, received := b.run(ctx, r, sender)
		require.ErrorIs(t, sent.err, lost)
		require.Error(t, received.err)
		_, err := os.Lstat(filepath.Join(dir, "f"))
		require.ErrorIs(t, err, os.ErrNotExist, "it is not complete")
		moved += sent.Bytes
	}
	sender.Events = nil
	sent, received := b.run(t.Context(), r, sender)
	good(t, sent, received, 1)
	same(t, s, dir)
	assert.Less(t, sent.Bytes, int64((blocks-3)*proto.BlockSize), "it was not resumed")
	assert.EqualValues(t, blocks*proto.BlockSize-77, sent.notes.moved)
	assert.Less(t, moved+sent.Bytes, int64((blocks+3*5)*proto.BlockSize))
}

// TestResumeOther: what is left of a file whose content has changed since, and not its size
// and time, is not used.
func TestResumeOther(t *testing.T) {
	b := newFixture(t)
	s := []tree.Source{{Local: filepath.Join(t.TempDir(), "f"), Name: "f"}}
	rng := rand.New(rand.NewPCG(7, 8))
	write(t, s[0].Local, random(rng, 12*proto.BlockSize))
	when := time.Unix(1_600_000_000, 0)
	require.NoError(t, os.Chtimes(s[0].Local, time.Time{}, when))
	r, dir := receiver(t, tree.Refuse, ReceiverConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	n := &eventRecorder{}
	n.onMoved = func(at int64) {
		if at >= 5*proto.BlockSize {
			cancel()
		}
	}
	sent, _ := b.run(ctx, r, SenderConfig{Sources: s, Events: n})
	require.ErrorIs(t, sent.err, context.Canceled)
	write(t, s[0].Local, random(rng, 12*proto.BlockSize))
	require.NoError(t, os.Chtimes(s[0].Local, time.Time{}, when))
	sent, received := b.run(t.Context(), r, SenderConfig{Sources: s})
	good(t, sent, received, 1)
	assert.EqualValues(t, 12*proto.BlockSize, sent.Bytes)
	same(t, s, dir)
}

// TestResumeParts: whatever is left of a file, the file that arrives is right, and what was
// right and whole is not sent again. The last block always comes again.
func TestResumeParts(t *testing.T) {
	b := newFixture(t)
	const size = 5*proto.BlockSize + 77
	content := random(rand.New(rand.NewPCG(7, 9)), size)
	s := []tree.Source{{Local: filepath.Join(t.TempDir(), "f"), Name: "f"}}
	write(t, s[0].Local, content)
	damaged := append([]byte(nil), content[:3*proto.BlockSize]...)
	damaged[proto.BlockSize+5] ^= 1
	for name, c := range map[string]struct {
		part []byte
		sent int64
	}{
		"nothing":      {nil, size},
		"empty":        {[]byte{}, size},
		"less":         {content[:proto.BlockSize-1], size},
		"three blocks": {content[:3*proto.BlockSize], size - 3*proto.BlockSize},
		"torn block":   {content[:3*proto.BlockSize+99], size - 3*proto.BlockSize},
		"all":          {content, 77},
		"more":         {append(content[:size:size], content...), 77},
		"damaged":      {damaged, size},
		"zeros":        {make([]byte, 4*proto.BlockSize), size},
	} {
		t.Run(name, func(t *testing.T) {
			r, dir := receiver(t, tree.Refuse, ReceiverConfig{})
			part := filepath.Join(dir, tree.WorkDir, tree.PartName("f")+".part")
			if c.part != nil {
				require.NoError(t, os.WriteFile(part, c.part, 0o600))
			}
			sent, received := b.run(t.Context(), r, SenderConfig{Sources: s})
			good(t, sent, received, 1)
			assert.Equal(t, c.sent, sent.Bytes)
			assert.EqualValues(t, size, sent.notes.moved)
			same(t, s, dir)
			_, err := os.Lstat(part)
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
	// A file that ends with a block: the last one comes again, too.
	write(t, s[0].Local, content[:2*proto.BlockSize])
	r, dir := receiver(t, tree.Refuse, ReceiverConfig{})
	require.NoError(t, os.WriteFile(filepath.Join(dir, tree.WorkDir, tree.PartName("f")+".part"), content[:2*proto.BlockSize], 0o600))
	sent, received := b.run(t.Context(), r, SenderConfig{Sources: s})
	good(t, sent, received, 1)
	assert.EqualValues(t, proto.BlockSize, sent.Bytes)
	same(t, s, dir)
}

// TestPolicies: files that exist.
func TestPolicies(t *testing.T) {
	b := newFixture(t)
	s := sources(t)
	for policy, check := range map[tree.Policy]func(dir string, sent, received outcome){
		tree.Refuse: func(dir string, sent, received outcome) {
			require.NoError(t, sent.err)
			assert.Equal(t, 2, sent.Failed)
			assert.Equal(t, 2, received.Failed)
			assert.Equal(t, proto.Exists, sent.notes.entry("tree/large").Code)
			assert.Equal(t, proto.Exists, received.notes.entry("tree/a/one").Code)
			assert.Equal(t, proto.OK, sent.notes.entry("tree/a/more").Code)
		},
		tree.Skip: func(dir string, sent, received outcome) {
			good(t, sent, received, 62)
			got, err := os.ReadFile(filepath.Join(dir, "tree/large"))
			require.NoError(t, err)
			assert.Equal(t, "old", string(got))
		},
		tree.Overwrite: func(dir string, sent, received outcome) {
			good(t, sent, received, 62)
			same(t, s, dir)
		},
	} {
		r, dir := receiver(t, policy, ReceiverConfig{})
		write(t, filepath.Join(dir, "tree/large"), []byte("old"))
		write(t, filepath.Join(dir, "tree/a/one"), []byte("old"))
		sent, received := b.run(t.Context(), r, SenderConfig{Sources: s})
		check(dir, sent, received)
		_ = os.Chmod(filepath.Join(dir, "tree/small"), 0o700)
	}
}

// TestSizes: more than is taken, or than there is room for.
func TestSizes(t *testing.T) {
	b := newFixture(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "d/small"), []byte("x"))
	write(t, filepath.Join(dir, "d/big"), make([]byte, 3000))
	huge, err := os.Create(filepath.Join(dir, "d/huge"))
	require.NoError(t, err)
	if err := huge.Truncate(1 << 43); err != nil { // 8 TiB of nothing
		t.Log("no sparse file of that size here:", err)
	}
	info, err := huge.Stat()
	require.NoError(t, err)
	require.NoError(t, huge.Close())
	s := []tree.Source{{Local: filepath.Join(dir, "d"), Name: "d"}}

	r, _ := receiver(t, tree.Refuse, ReceiverConfig{MaxSize: 2000})
	sent, received := b.run(t.Context(), r, SenderConfig{Sources: s})
	require.NoError(t, sent.err)
	require.NoError(t, received.err)
	assert.Equal(t, proto.TooBig, sent.notes.entry("d/big").Code)
	assert.Equal(t, proto.OK, sent.notes.entry("d/small").Code)

	r, _ = receiver(t, tree.Refuse, ReceiverConfig{})
	if free := r.dest.FreeBytes(); free < 0 || free > info.Size() {
		t.Skip("the disk has room for all that can be made up here")
	}
	sent, _ = b.run(t.Context(), r, SenderConfig{Sources: s})
	require.NoError(t, sent.err)
	assert.Equal(t, proto.NoSpace, sent.notes.entry("d/huge").Code)
	assert.Equal(t, proto.OK, sent.notes.entry("d/big").Code)
	assert.True(t, sent.NoSpace)
}

// TestChanging: a file that changes while it is sent is reported, and does not arrive.
func TestChanging(t *testing.T) {
	b := newFixture(t)
	dir := t.TempDir()
	large := filepath.Join(dir, "d/large")
	write(t, large, make([]byte, 20*proto.BlockSize))
	write(t, filepath.Join(dir, "d/other"), []byte("x"))
	s := []tree.Source{{Local: filepath.Join(dir, "d"), Name: "d"}}
	for name, change := range map[string]func(f *os.File) error{
		"longer":  func(f *os.File) error { _, err := f.Write([]byte("more")); return err },
		"shorter": func(f *os.File) error { return f.Truncate(6 * proto.BlockSize) },
		"another": func(f *os.File) error { _, err := f.WriteAt([]byte("other"), 5); return err },
	} {
		write(t, large, make([]byte, 20*proto.BlockSize))
		n := &eventRecorder{}
		var once sync.Once
		n.onMoved = func(at int64) {
			if at >= 2*proto.BlockSize {
				once.Do(func() {
					f, err := os.OpenFile(large, os.O_WRONLY, 0)
					if assert.NoError(t, err) {
						_, _ = f.Seek(0, 2)
						assert.NoError(t, change(f), name)
						assert.NoError(t, f.Close())
					}
				})
			}
		}
		r, into := receiver(t, tree.Refuse, ReceiverConfig{})
		// Slow enough that it is not all read before it changes.
		sent, received := b.run(t.Context(), r, SenderConfig{Sources: s, Events: n, Limit: NewLimiter(64 << 20)})
		require.NoError(t, sent.err)
		require.NoError(t, received.err)
		assert.Equal(t, proto.Changed, n.entry("d/large").Code, name)
		assert.Equal(t, proto.Changed, received.notes.entry("d/large").Code, name)
		assert.Equal(t, proto.OK, n.entry("d/other").Code)
		assert.Equal(t, 1, sent.Failed)
		_, err := os.Lstat(filepath.Join(into, "d/large"))
		require.ErrorIs(t, err, os.ErrNotExist)
		list, err := os.ReadDir(filepath.Join(into, tree.WorkDir))
		require.NoError(t, err)
		assert.Empty(t, list, "nothing of it is kept")
	}
}

// TestUnreadable: a file that is gone, or may not be read, does not stop the others.
func TestUnreadable(t *testing.T) {
	b := newFixture(t)
	s := sources(t)
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(s[0].Local, "out")))
	r, _ := receiver(t, tree.Refuse, ReceiverConfig{})
	n := &eventRecorder{}
	gone := sync.OnceFunc(func() {
		assert.NoError(t, os.Remove(filepath.Join(s[0].Local, "large")))
	})
	n.onMoved = func(int64) { gone() }
	sent, received := b.run(t.Context(), r, SenderConfig{Sources: s, Events: n, Limit: NewLimiter(64 << 20)})
	require.NoError(t, sent.err)
	require.NoError(t, received.err)
	assert.Equal(t, proto.UnsafePath, n.entry("tree/out").Code)
	assert.NotEqual(t, proto.OK, n.entry("tree/large").Code)
	assert.Equal(t, 2, sent.Failed)
	assert.Equal(t, proto.OK, n.entry("tree/small/49").Code)
}

// TestGeneratedFiles: files that the system makes up, whose content is not as long as their size
// says, are refused, and do not arrive empty or cut off.
func TestGeneratedFiles(t *testing.T) {
	b := newFixture(t)
	made := map[string]string{"/proc/version": "empty", "/proc/sys/kernel/ostype": "empty", "/sys/kernel/uevent_seqnum": "longer"}
	var s []tree.Source
	for path := range made {
		if _, err := os.Stat(path); err == nil {
			s = append(s, tree.Source{Local: path, Name: filepath.Base(path)})
		}
	}
	if len(s) == 0 {
		t.Skip("the system makes up no files here")
	}
	empty := filepath.Join(t.TempDir(), "empty")
	write(t, empty, nil)
	r, dir := receiver(t, tree.Refuse, ReceiverConfig{})
	sent, received := b.run(t.Context(), r, SenderConfig{Sources: append(s, tree.Source{Local: empty, Name: "empty"})})
	require.NoError(t, sent.err)
	require.NoError(t, received.err)
	assert.Equal(t, len(s), sent.Failed)
	assert.Equal(t, proto.OK, sent.notes.entry("empty").Code)
	for _, source := range s {
		e := sent.notes.entry(source.Name)
		assert.Equal(t, proto.Unreadable, e.Code, "%+v", e)
		assert.Contains(t, e.Text, "as for files in /proc")
		_, err := os.Lstat(filepath.Join(dir, source.Name))
		require.ErrorIs(t, err, os.ErrNotExist)
	}
}

// TestTwoSenders of one name: the second waits for the first, or is refused.
func TestTwoSenders(t *testing.T) {
	b := newFixture(t)
	s := []tree.Source{{Local: filepath.Join(t.TempDir(), "f"), Name: "f"}}
	write(t, s[0].Local, random(rand.New(rand.NewPCG(9, 9)), 6*proto.BlockSize))
	r, dir := receiver(t, tree.Refuse, ReceiverConfig{})
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			sent, received := b.run(t.Context(), r, SenderConfig{Sources: s})
			assert.NoError(t, sent.err)
			assert.NoError(t, received.err)
			assert.Equal(t, 1, sent.Entries, "%+v", sent.notes.entries)
		})
	}
	both.Wait()
	same(t, s, dir)
}

// TestAgain: a sender that connects again, while its first connection seems to live, takes
// its place.
func TestAgain(t *testing.T) {
	b := newFixture(t)
	s := []tree.Source{{Local: filepath.Join(t.TempDir(), "f"), Name: "f"}}
	write(t, s[0].Local, random(rand.New(rand.NewPCG(9, 9)), 6*proto.BlockSize))
	r, dir := receiver(t, tree.Refuse, ReceiverConfig{})
	sender := NewSender(SenderConfig{Sources: s, Events: &eventRecorder{}})
	from, to := b.links()
	first := make(chan error, 1)
	go func() {
		_, err := r.Serve(t.Context(), to, &eventRecorder{})
		first <- err
	}()
	_, err := sender.handshake(t.Context(), from) // and not a word more
	require.NoError(t, err)
	again, toAgain := b.links()
	second := make(chan error, 1)
	go func() {
		_, err := r.Serve(t.Context(), toAgain, &eventRecorder{})
		second <- err
	}()
	sum, err := sender.Run(t.Context(), again)
	require.NoError(t, err)
	assert.Equal(t, 1, sum.Entries)
	require.ErrorIs(t, <-first, link.ErrBroken)
	b.end(again)
	require.NoError(t, <-second)
	b.end(from)
	b.end(to)
	b.end(toAgain)
	same(t, s, dir)
}
