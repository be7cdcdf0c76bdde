package tree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCheckPath(t *testing.T) {
	for _, p := range []string{"a", "a/b", ".hidden", "a/.verbena", "..a", "a..", "-x", "ä/日本", "a b", "x/.verbena/y", "...", strings.Repeat("x", 255)} {
		assert.NoError(t, CheckPath(p), p)
	}
	for _, p := range []string{"", "/", "/a", ".", "..", "../a", "a/..", "a/../b", "a/./b", "a//b", "a/", "./a", "a\x00b",
		".verbena", ".verbena/x", ".VERBENA/x", strings.Repeat("x", 256), strings.Repeat("x/", 2048) + "y"} {
		assert.ErrorIs(t, CheckPath(p), ErrPath, "%q", p)
	}
}

func TestCheckTarget(t *testing.T) {
	for _, c := range [][2]string{{"l", "a"}, {"l", "a/b"}, {"d/l", "../a"}, {"d/e/l", "../../a/b"}, {"d/l", ".."}, {"l", "."}, {"d/l", "../d"}, {"l", "dir/"}} {
		assert.NoError(t, CheckTarget(c[0], c[1]), "%s -> %s", c[0], c[1])
	}
	for _, c := range [][2]string{{"l", ""}, {"l", "/etc/passwd"}, {"l", ".."}, {"l", "../x"}, {"d/l", "../../x"}, {"d/l", "../.."}, {"d/e/l", "../x/../../.."},
		{"l", "a/../../x"}, {"l", "a/.."}, {"l", "a\x00"}, {"l", "//x"}, {"l", ".verbena/x"}, {"d/l", "../.verbena/x"}, {"l", strings.Repeat("x", 5000)}} {
		assert.ErrorIs(t, CheckTarget(c[0], c[1]), ErrPath, "%s -> %q", c[0], c[1])
	}
}

// FuzzCheckPath: what is taken stays below the folder, however it is looked at.
func FuzzCheckPath(f *testing.F) {
	for _, p := range []string{"a/b", "../a", "/a", "a/../..", "a//b", "C:\\x", "a\\..\\b", ".verbena/x", "nul"} {
		f.Add(p, "x")
		f.Add("d/l", p)
	}
	f.Fuzz(func(t *testing.T, p, target string) {
		if CheckPath(p) == nil {
			require.True(t, filepath.IsLocal(p))
			require.Equal(t, p, path.Clean(p))
			require.False(t, strings.HasPrefix(strings.ToLower(p)+"/", WorkDir+"/"))
			if CheckTarget(p, target) == nil {
				require.False(t, path.IsAbs(target))
				joined := path.Join(path.Dir(p), target)
				require.True(t, joined == "." || filepath.IsLocal(joined), joined)
			}
		}
		for _, r := range Show(p) {
			require.False(t, r < 0x20 || r == 0x7f, "%q", Show(p))
		}
	})
}

func openDest(t *testing.T, policy Policy) (*Dest, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "dest")
	d, err := OpenDest(dir, policy)
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d, dir
}

var when = time.Unix(1_600_000_000, 5_000_000)

func store(d *Dest, p, content string) error {
	part, err := d.NewPart(p)
	if err != nil {
		return err
	}
	if _, err := part.WriteString(content); err != nil {
		return err
	}
	return part.Commit(&proto.Entry{Path: p, Mode: 0o640, Modified: when}, true)
}

func TestCommit(t *testing.T) {
	d, dir := openDest(t, Refuse)
	require.NoError(t, d.MakeDir("a", 0o500))
	require.NoError(t, d.Parents("a/f"))
	require.NoError(t, store(d, "a/f", "content"))
	b, err := os.ReadFile(filepath.Join(dir, "a/f"))
	require.NoError(t, err)
	assert.Equal(t, "content", string(b))
	info, err := os.Lstat(filepath.Join(dir, "a/f"))
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o640), info.Mode())
	assert.True(t, info.ModTime().Equal(when))

	require.NoError(t, d.SetDir("a", 0o750, when))
	info, err = os.Lstat(filepath.Join(dir, "a"))
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o750), info.Mode().Perm())
	assert.True(t, info.ModTime().Equal(when))

	state, err := d.Look(&proto.Entry{Path: "a/f", Size: 7, Modified: when})
	require.NoError(t, err)
	assert.Equal(t, Same, state)
	_, err = d.Look(&proto.Entry{Path: "a/f", Size: 8, Modified: when})
	require.ErrorIs(t, err, ErrExists)
	_, err = d.Look(&proto.Entry{Path: "a/f", Type: proto.Directory})
	require.ErrorIs(t, err, ErrExists)
	require.ErrorIs(t, store(d, "a/f", "other"), ErrExists, "it came between")
	require.NoError(t, d.SetMode("a/f", 0o600))
	require.NoError(t, d.Close())
	_, err = os.Lstat(filepath.Join(dir, WorkDir))
	assert.NoError(t, err, "what was not completed is kept")
}

func TestPolicies(t *testing.T) {
	for policy, want := range map[Policy]struct {
		state State
		text  string
	}{Skip: {Kept, "old"}, Overwrite: {Absent, "new"}} {
		d, dir := openDest(t, policy)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte("old"), 0o600))
		state, err := d.Look(&proto.Entry{Path: "f", Size: 99})
		require.NoError(t, err)
		assert.Equal(t, want.state, state)
		if state == Absent {
			require.NoError(t, store(d, "f", "new"))
		}
		b, err := os.ReadFile(filepath.Join(dir, "f"))
		require.NoError(t, err)
		assert.Equal(t, want.text, string(b))
		require.NoError(t, d.MakeDir("d", 0o700))
		_, err = d.Look(&proto.Entry{Path: "d", Size: 99})
		require.ErrorIs(t, err, ErrExists, "a directory is never replaced")
		require.NoError(t, d.Close())
		_, err = os.Lstat(filepath.Join(dir, WorkDir))
		assert.ErrorIs(t, err, fs.ErrNotExist, "nothing is left")
	}
	for text, want := range map[string]Policy{"refuse": Refuse, "skip": Skip, "overwrite": Overwrite} {
		p, err := ParsePolicy(text)
		require.NoError(t, err)
		assert.Equal(t, want, p)
	}
	_, err := ParsePolicy("merge")
	require.ErrorContains(t, err, "merge")
}

// TestSymlinksAreNotFollowed: whoever has made them, and wherever they lead.
func TestSymlinksAreNotFollowed(t *testing.T) {
	d, dir := openDest(t, Overwrite)
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "f"), []byte("mine"), 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "out")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "in"), 0o700))
	require.NoError(t, os.Symlink("in", filepath.Join(dir, "inlink")))
	require.NoError(t, os.Symlink(filepath.Join(outside, "f"), filepath.Join(dir, "file")))

	require.ErrorIs(t, d.Parents("out/x"), ErrPath)
	require.ErrorIs(t, d.Parents("inlink/x"), ErrPath)
	require.ErrorIs(t, d.Parents("file/x"), ErrPath)
	require.ErrorIs(t, d.Parents("missing/x"), fs.ErrNotExist)
	require.NoError(t, d.Parents("in/x"))
	// Without that check the root still holds.
	require.Error(t, store(d, "out/f", "theirs"))
	require.Error(t, d.MakeDir("out/d", 0o700))
	require.Error(t, d.SetDir("out", 0o777, when))
	// A link in the place of a file is replaced, not written through.
	require.NoError(t, store(d, "file", "theirs"))
	b, err := os.ReadFile(filepath.Join(outside, "f"))
	require.NoError(t, err)
	assert.Equal(t, "mine", string(b))
	list, err := os.ReadDir(outside)
	require.NoError(t, err)
	assert.Len(t, list, 1)

	e := &proto.Entry{Type: proto.Symlink, Path: "in/l", Target: "../file"}
	require.NoError(t, d.MakeLink(e))
	state, err := d.Look(e)
	require.NoError(t, err)
	assert.Equal(t, Same, state)
}

func TestOneReceiver(t *testing.T) {
	d, dir := openDest(t, Refuse)
	_, err := OpenDest(dir, Refuse)
	require.ErrorContains(t, err, "another verbena receive")
	require.NoError(t, d.Close())
	d, err = OpenDest(dir, Refuse)
	require.NoError(t, err)
	require.NoError(t, d.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, WorkDir), nil, 0o600))
	_, err = OpenDest(dir, Refuse)
	require.ErrorContains(t, err, "in the way")
}

func TestOldParts(t *testing.T) {
	d, dir := openDest(t, Refuse)
	part, err := d.NewPart("f")
	require.NoError(t, err)
	require.NoError(t, part.Close())
	part, err = d.OldPart("f")
	require.NoError(t, err)
	require.NoError(t, part.Close())
	require.NoError(t, d.Close())
	old := filepath.Join(dir, WorkDir, PartName("f")+".part")
	require.NoError(t, os.Chtimes(old, time.Time{}, time.Now().Add(-keepParts-time.Hour)))
	d, err = OpenDest(dir, Refuse)
	require.NoError(t, err)
	_, err = d.OldPart("f")
	require.ErrorIs(t, err, fs.ErrNotExist, "nobody has come back for it")
	require.NoError(t, d.Close())
}

func TestWalk(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []string{"top/b/c", "top/a"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, p), 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "top/b/f"), []byte("12345"), 0o604))
	require.NoError(t, os.Symlink("b/f", filepath.Join(dir, "top/l")))
	require.NoError(t, os.Symlink("top", filepath.Join(dir, "named")))
	pipe := mkfifo(t, filepath.Join(dir, "top/p"))

	sources, err := Sources([]string{filepath.Join(dir, "named")})
	require.NoError(t, err)
	assert.Equal(t, "named", sources[0].Name, "a link that is named is followed, and keeps its name")
	var got []string
	codes := map[string]proto.Code{}
	require.NoError(t, Walk(t.Context(), sources, func(f Found) error {
		got = append(got, f.Path)
		codes[f.Path] = f.Code
		if f.Path == "named/b/f" {
			assert.EqualValues(t, 5, f.Size)
			assert.EqualValues(t, 0o604, f.Mode)
		}
		if f.Path == "named/l" {
			assert.Equal(t, "b/f", f.Target)
		}
		return nil
	}))
	want := []string{"named", "named/a", "named/b", "named/b/c", "named/b/f", "named/l"}
	if pipe {
		want = append(want, "named/p")
		assert.Equal(t, proto.BadType, codes["named/p"])
	}
	assert.Equal(t, want, got)
	n, err := Size(t.Context(), sources)
	require.NoError(t, err)
	assert.EqualValues(t, 5, n)

	stop := errors.New("stop")
	require.ErrorIs(t, Walk(t.Context(), sources, func(Found) error { return stop }), stop)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Walk(ctx, sources, func(Found) error { return nil }), context.Canceled)
	_, err = Sources([]string{filepath.Join(dir, "top/a"), filepath.Join(dir, "top/../top/a")})
	require.ErrorContains(t, err, "would both be named a")
	_, err = Sources([]string{filepath.Join(dir, "absent")})
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = Sources([]string{"/"})
	require.ErrorIs(t, err, ErrPath)
}

func TestChanged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	found := func() (f Found) {
		t.Helper()
		require.NoError(t, os.WriteFile(file, []byte("12345"), 0o600))
		require.NoError(t, os.Chtimes(file, time.Time{}, when))
		require.NoError(t, Walk(t.Context(), []Source{{file, "f"}}, func(g Found) error { f = g; return nil }))
		return f
	}
	for name, change := range map[string]func(){
		"longer":   func() { require.NoError(t, os.WriteFile(file, []byte("123456"), 0o600)) },
		"later":    func() { require.NoError(t, os.Chtimes(file, time.Time{}, when.Add(1))) },
		"replaced": func() { require.NoError(t, os.Rename(file, file+".old")); found() },
	} {
		f := found()
		open, err := Open(&f)
		require.NoError(t, err)
		require.NoError(t, open.Close())
		change()
		_, err = Open(&f)
		require.ErrorIs(t, err, ErrChanged, name)
	}
}

func TestShow(t *testing.T) {
	assert.Equal(t, "a ä", Show("a ä"))
	assert.Equal(t, `"\x1b[2J"`, Show("\x1b[2J"))
	assert.Equal(t, `"\xff"`, Show("\xff"))
	assert.Equal(t, `""`, Show(""))
}

func TestCodes(t *testing.T) {
	for code, err := range map[proto.Code]error{
		proto.OK: nil, proto.Exists: ErrExists, proto.UnsafePath: ErrPath, proto.NoPermission: fs.ErrPermission, proto.Failed: errors.New("x"),
	} {
		assert.Equal(t, code, CodeOf(err))
	}
}
