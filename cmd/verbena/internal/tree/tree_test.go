package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
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

// Transfers, and which of them are live.
var (
	me, other = [16]byte{1}, [16]byte{2}
	nobody    = func([16]byte) bool { return false }
	everybody = func([16]byte) bool { return true }
)

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
	require.NoError(t, d.MakeDir("a", 0o500, me))
	require.NoError(t, store(d, "a/f", "content"))
	b, err := os.ReadFile(filepath.Join(dir, "a/f"))
	require.NoError(t, err)
	assert.Equal(t, "content", string(b))
	info, err := os.Lstat(filepath.Join(dir, "a/f"))
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o640), info.Mode())
	assert.True(t, info.ModTime().Equal(when))

	require.NoError(t, d.CompleteDir("a", 0o500, when, me))
	info, err = os.Lstat(filepath.Join(dir, "a"))
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o500), info.Mode().Perm())
	assert.True(t, info.ModTime().Equal(when))

	state, err := d.Stat(&proto.Entry{Path: "a/f", Size: 7, Modified: when})
	require.NoError(t, err)
	assert.Equal(t, Same, state)
	_, err = d.Stat(&proto.Entry{Path: "a/f", Size: 8, Modified: when})
	require.ErrorIs(t, err, ErrExists)
	_, err = d.Stat(&proto.Entry{Path: "a/f", Type: proto.Directory})
	require.ErrorIs(t, err, ErrExists)
	require.ErrorIs(t, store(d, "a/f", "other"), ErrExists, "it came between")
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
		state, err := d.Stat(&proto.Entry{Path: "f", Size: 99})
		require.NoError(t, err)
		assert.Equal(t, want.state, state)
		if state == Absent {
			require.NoError(t, store(d, "f", "new"))
		}
		b, err := os.ReadFile(filepath.Join(dir, "f"))
		require.NoError(t, err)
		assert.Equal(t, want.text, string(b))
		require.NoError(t, d.MakeDir("d", 0o700, me))
		require.NoError(t, d.CompleteDir("d", 0o700, when, me))
		_, err = d.Stat(&proto.Entry{Path: "d", Size: 99})
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

// modeOf returns the permissions under a name, and whether the time is when.
func modeOf(t *testing.T, name string) (mode fs.FileMode, set bool) {
	t.Helper()
	info, err := os.Lstat(name)
	require.NoError(t, err)
	return info.Mode() &^ fs.ModeDir, info.ModTime().Equal(when)
}

// What exists keeps its permissions and times, unless the policy is Overwrite.
func TestExistingKeepsItsPermissions(t *testing.T) {
	for _, policy := range []Policy{Refuse, Skip, Overwrite} {
		d, dir := openDest(t, policy)
		folder, file := filepath.Join(dir, "d"), filepath.Join(dir, "f")
		require.NoError(t, os.Mkdir(folder, 0o700))
		require.NoError(t, os.Chmod(folder, 0o300|fs.ModeSetgid|fs.ModeSticky))
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		require.NoError(t, os.Chmod(file, 0))
		require.NoError(t, d.ResumeDir("d", 0o577, me, nobody))
		require.NoError(t, d.UpdateMode("f", 0o666))
		during, _ := modeOf(t, folder)
		require.NoError(t, d.CompleteDir("d", 0o577, when, me))
		after, timed := modeOf(t, folder)
		mode, _ := modeOf(t, file)
		if policy == Overwrite {
			assert.Equal(t, 0o777&^umask()|fs.ModeSetgid|fs.ModeSticky, during)
			assert.Equal(t, 0o577&^umask()|fs.ModeSetgid|fs.ModeSticky, after)
			assert.Equal(t, 0o666&^umask(), mode)
		} else {
			assert.Equal(t, 0o300|fs.ModeSetgid|fs.ModeSticky, during)
			assert.Equal(t, 0o300|fs.ModeSetgid|fs.ModeSticky, after)
			assert.Zero(t, mode)
		}
		assert.Equal(t, policy == Overwrite, timed)
	}
}

// A directory is completed by the transfer that made it, and once. If that was interrupted, the
// next transfer completes it, even one of another process, and opens it to nobody.
func TestCompleteDir(t *testing.T) {
	d, dir := openDest(t, Refuse)
	at := filepath.Join(dir, "d")
	untouched := func() {
		t.Helper()
		mode, timed := modeOf(t, at)
		assert.Equal(t, fs.FileMode(0o700), mode)
		assert.False(t, timed)
	}
	require.NoError(t, d.MakeDir("d", 0o500, me))
	untouched()
	require.NoError(t, d.ResumeDir("d", 0o777, other, everybody), "the transfer that made it is live")
	require.NoError(t, d.CompleteDir("d", 0o577, when, other))
	untouched()
	require.NoError(t, d.Close())
	d, err := OpenDest(dir, Refuse)
	require.NoError(t, err)
	require.NoError(t, d.CompleteDir("d", 0o577, when, other), "it was not announced")
	untouched()
	require.NoError(t, d.ResumeDir("d", 0o577, other, nobody))
	untouched()
	require.NoError(t, d.CompleteDir("d", 0o500, when, me), "another transfer has it")
	untouched()
	require.NoError(t, d.CompleteDir("d", 0o577, when, other))
	mode, timed := modeOf(t, at)
	assert.Equal(t, fs.FileMode(0o500), mode)
	assert.True(t, timed)

	require.NoError(t, os.Chmod(at, 0o700))
	require.NoError(t, os.Chtimes(at, time.Time{}, time.Now()))
	require.NoError(t, d.ResumeDir("d", 0o577, other, nobody))
	require.NoError(t, d.CompleteDir("d", 0o577, when, other))
	untouched()
	require.NoError(t, d.Close())
	_, err = os.Lstat(filepath.Join(dir, WorkDir))
	assert.ErrorIs(t, err, fs.ErrNotExist, "nothing is left")
}

// A directory that has taken the place of the one that a transfer made stays as it is, whether the
// transfer is live or interrupted, and nothing is left of the claim.
func TestDirReplaced(t *testing.T) {
	for name, resume := range map[string]func(d *Dest) error{
		"live":        func(*Dest) error { return nil },
		"interrupted": func(d *Dest) error { return d.ResumeDir("d", 0o500, me, nobody) },
		"another's":   func(d *Dest) error { return d.ResumeDir("d", 0o500, me, everybody) },
	} {
		d, dir := openDest(t, Refuse)
		at := filepath.Join(dir, "d")
		require.NoError(t, d.MakeDir("d", 0o500, me))
		require.NoError(t, os.Rename(at, at+".old"))
		require.NoError(t, os.Mkdir(at, 0o700))
		require.NoError(t, resume(d))
		require.NoError(t, d.CompleteDir("d", 0o500, when, me))
		for _, p := range []string{at, at + ".old"} {
			mode, timed := modeOf(t, p)
			assert.Equal(t, fs.FileMode(0o700), mode, name)
			assert.False(t, timed, name)
		}
		require.NoError(t, d.Close())
		_, err := os.Lstat(filepath.Join(dir, WorkDir))
		assert.ErrorIs(t, err, fs.ErrNotExist, name)
	}
}

// A claim without an identity, as an earlier release left it, is not trusted.
func TestClaimWithoutIdentity(t *testing.T) {
	d, dir := openDest(t, Refuse)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
	require.NoError(t, d.work.WriteFile(claimName("d"), me[:], 0o600))
	require.NoError(t, d.ResumeDir("d", 0o500, me, nobody))
	require.NoError(t, d.CompleteDir("d", 0o500, when, me))
	mode, timed := modeOf(t, filepath.Join(dir, "d"))
	assert.Equal(t, fs.FileMode(0o700), mode)
	assert.False(t, timed)
}

// A transfer that looks at a directory while another one makes it takes nothing from the other's
// claim, even if there is an old claim.
func TestResumeDirWhileMade(t *testing.T) {
	d, dir := openDest(t, Refuse)
	for i := range 200 {
		name := fmt.Sprint("d", i)
		require.NoError(t, d.claim(name, identity{1}, other))
		var looker sync.WaitGroup
		looker.Go(func() {
			for errors.Is(d.ResumeDir(name, 0o700, other, everybody), fs.ErrNotExist) {
				runtime.Gosched()
			}
		})
		err := d.MakeDir(name, 0o700, me)
		looker.Wait()
		require.NoError(t, err)
		require.NoError(t, d.CompleteDir(name, 0o700, when, me))
		_, timed := modeOf(t, filepath.Join(dir, name))
		require.True(t, timed)
	}
}

// With Overwrite, too, a live transfer keeps the directories that it completes.
func TestOverwriteLeavesLiveTransfers(t *testing.T) {
	d, dir := openDest(t, Overwrite)
	at := filepath.Join(dir, "d")
	require.NoError(t, d.MakeDir("d", 0o500, me))
	require.NoError(t, d.ResumeDir("d", 0o777, other, everybody))
	require.NoError(t, d.CompleteDir("d", 0o577, when.Add(1), other))
	mode, _ := modeOf(t, at)
	assert.Equal(t, fs.FileMode(0o700), mode)
	require.NoError(t, d.ResumeDir("d", 0o500, me, everybody), "it has connected again")
	require.NoError(t, d.CompleteDir("d", 0o500, when, me))
	mode, timed := modeOf(t, at)
	assert.Equal(t, fs.FileMode(0o500), mode)
	assert.True(t, timed)
	require.NoError(t, d.ResumeDir("d", 0o777, other, everybody), "it is complete")
	require.NoError(t, d.CompleteDir("d", 0o777, when, other))
	mode, _ = modeOf(t, at)
	assert.Equal(t, 0o777&^umask(), mode)
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

	for p, want := range map[string]error{"out/x": ErrPath, "inlink/x": ErrPath, "file/x": ErrPath, "missing/x": fs.ErrNotExist, "in/x": nil} {
		state, err := d.Stat(&proto.Entry{Path: p})
		require.ErrorIs(t, err, want, p)
		assert.Equal(t, Absent, state)
	}
	require.Error(t, store(d, "inlink/f", "theirs"))
	require.Error(t, store(d, "out/f", "theirs"))
	require.Error(t, d.MakeDir("out/d", 0o700, me))
	require.NoError(t, d.ResumeDir("out", 0o777, me, nobody), "a link has no permissions")
	require.Error(t, d.CompleteDir("out", 0o777, when, me))
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
	state, err := d.Stat(e)
	require.NoError(t, err)
	assert.Equal(t, Same, state)
}

// TestLinksThatComeLater: a link that takes the place of a directory, or a file, while the
// folder receives leads nowhere either.
func TestLinksThatComeLater(t *testing.T) {
	d, dir := openDest(t, Overwrite)
	outside := t.TempDir()
	for _, into := range []string{outside, filepath.Join(dir, "private")} {
		require.NoError(t, os.MkdirAll(filepath.Join(into, "sub"), 0o700))
		require.NoError(t, os.Chmod(into, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(into, "f"), []byte("mine"), 0o600))
		require.NoError(t, os.Chtimes(filepath.Join(into, "f"), time.Time{}, when))
		require.NoError(t, d.MakeDir("a", 0o700, me))
		require.NoError(t, d.MakeDir("a/sub", 0o700, me))
		part, err := d.NewPart("a/f")
		require.NoError(t, err)
		_, err = part.WriteString("theirs")
		require.NoError(t, err)
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "a")))
		require.NoError(t, os.Symlink(into, filepath.Join(dir, "a")))
		// The directory that was there is gone, and nothing arrives where the link leads.
		require.Error(t, part.Commit(&proto.Entry{Path: "a/f", Mode: 0o640, Modified: when}, false))
		require.Error(t, d.MakeLink(&proto.Entry{Type: proto.Symlink, Path: "a/l", Target: "f"}))
		require.Error(t, d.MakeDir("a/sub/d", 0o700, me))
		_ = d.CompleteDir("a", 0o555, when, me) // of the one that was there
		require.Error(t, d.UpdateMode("a/f", 0o644))
		require.NoError(t, os.Symlink(filepath.Join(into, "f"), filepath.Join(dir, "link")))
		require.NoError(t, d.UpdateMode("link", 0o644), "a link has no permissions")
		require.NoError(t, os.Remove(filepath.Join(dir, "link")))
		require.NoError(t, os.Remove(filepath.Join(dir, "a")))
		b, err := os.ReadFile(filepath.Join(into, "f"))
		require.NoError(t, err)
		assert.Equal(t, "mine", string(b))
		info, err := os.Lstat(filepath.Join(into, "f"))
		require.NoError(t, err)
		assert.Equal(t, fs.FileMode(0o600), info.Mode())
		info, err = os.Lstat(into)
		require.NoError(t, err)
		assert.Equal(t, fs.FileMode(0o700), info.Mode().Perm())
		assert.False(t, info.ModTime().Equal(when))
		list, err := os.ReadDir(into)
		require.NoError(t, err)
		assert.Len(t, list, 2)
		list, err = os.ReadDir(filepath.Join(into, "sub"))
		require.NoError(t, err)
		assert.Empty(t, list)
	}
}

// TestWorkFolder: what somebody else can write to is not used for incomplete files, also if
// it comes later.
func TestWorkFolder(t *testing.T) {
	dir := t.TempDir()
	work := filepath.Join(dir, WorkDir)
	require.NoError(t, os.Mkdir(work, 0o700))
	for _, mode := range []fs.FileMode{0o777, 0o770, 0o702} {
		require.NoError(t, os.Chmod(work, mode))
		_, err := OpenDest(dir, Refuse)
		require.ErrorContains(t, err, "other users may write to it")
	}
	require.NoError(t, os.Chmod(work, 0o755))
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(work, 12345, 12345))
		_, err := OpenDest(dir, Refuse)
		require.ErrorContains(t, err, "belongs to user 12345")
		require.NoError(t, os.Chown(work, 0, 0))
	}
	require.NoError(t, os.Rename(work, work+".real"))
	require.NoError(t, os.Symlink(work+".real", work))
	_, err := OpenDest(dir, Refuse)
	require.ErrorContains(t, err, "exists and is not a directory")
	require.NoError(t, os.Remove(work))

	d, err := OpenDest(dir, Refuse)
	require.NoError(t, err)
	part, err := d.NewPart("f")
	require.NoError(t, err)
	_, err = part.WriteString("theirs")
	require.NoError(t, err)
	require.NoError(t, os.Rename(work, work+".moved"))
	require.NoError(t, os.Mkdir(work, 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(work, PartName("f")+".part"), []byte("mine"), 0o600))
	require.NoError(t, part.Commit(&proto.Entry{Path: "f", Mode: 0o600, Modified: when}, false))
	b, err := os.ReadFile(filepath.Join(dir, "f"))
	require.NoError(t, err)
	assert.Equal(t, "theirs", string(b))
	_, err = d.OldPart("f")
	require.ErrorIs(t, err, fs.ErrNotExist, "the other folder is not looked at")
	require.NoError(t, d.Close())
}

// TestDeepNames: the cost of a name follows its length, not the square of it.
func TestDeepNames(t *testing.T) {
	const depth, names = 400, 24
	d, _ := openDest(t, Refuse)
	deep := "d"
	for range depth {
		require.NoError(t, d.MakeDir(deep, 0o700, me))
		deep += "/d"
	}
	for i := range names {
		require.NoError(t, d.MakeDir(fmt.Sprint(deep, i), 0o700, me))
	}
	assert.LessOrEqual(t, d.folder.opened, depth, "each was made in the one before")
	before := d.folder.opened
	for i := range names {
		state, err := d.Stat(&proto.Entry{Path: fmt.Sprint(deep, i, "/f")})
		require.NoError(t, err)
		assert.Equal(t, Absent, state)
	}
	assert.LessOrEqual(t, d.folder.opened-before, names*(depth+1))
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
	require.ErrorContains(t, err, "exists and is not a directory")
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

// walkAll walks over sources that stay open until the test ends.
func walkAll(t *testing.T, sources []Source, f func(Found) error) error {
	t.Helper()
	files := NewFiles(sources)
	t.Cleanup(func() { assert.NoError(t, files.Close()) })
	return files.Walk(t.Context(), f)
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
	require.NoError(t, walkAll(t, sources, func(f Found) error {
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
	require.ErrorIs(t, walkAll(t, sources, func(Found) error { return stop }), stop)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, NewFiles(sources).Walk(ctx, func(Found) error { return nil }), context.Canceled)
	_, err = Sources([]string{filepath.Join(dir, "top/a"), filepath.Join(dir, "top/../top/a")})
	require.ErrorContains(t, err, "would both be named a")
	_, err = Sources([]string{filepath.Join(dir, "absent")})
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = Sources([]string{filepath.Join(dir, "top"), ""})
	require.ErrorContains(t, err, "empty")
	_, err = Sources([]string{"/"})
	require.ErrorIs(t, err, ErrPath)
}

// TestSwappedWhileSending: what takes the place of something that is being sent is not sent
// for it, and holds nothing up.
func TestSwappedWhileSending(t *testing.T) {
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "f"), []byte("mine"), 0o600))
	link := func(path string) {
		require.NoError(t, os.RemoveAll(path))
		require.NoError(t, os.Symlink(outside, path))
	}
	walk := func(swap func(top string, f Found)) (found []Found, dir string, files *Files) {
		dir = t.TempDir()
		top := filepath.Join(dir, "top")
		require.NoError(t, os.MkdirAll(filepath.Join(top, "b"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(top, "b/f"), []byte("ours"), 0o600))
		files = NewFiles([]Source{{top, "top"}})
		t.Cleanup(func() { assert.NoError(t, files.Close()) })
		require.NoError(t, files.Walk(t.Context(), func(f Found) error {
			swap(top, f)
			found = append(found, f)
			return nil
		}))
		return found, dir, files
	}
	for _, at := range []string{"top", "top/b"} {
		found, _, _ := walk(func(top string, f Found) {
			if f.Path == at {
				link(filepath.Join(top, strings.TrimPrefix(strings.TrimPrefix(at, "top"), "/")))
			}
		})
		for _, f := range found {
			assert.False(t, f.Code == proto.OK && f.Type == proto.File, "%s was found behind a link", f.Path)
		}
	}
	for name, swap := range map[string]func(top string){
		"link for directory": func(top string) { link(filepath.Join(top, "b")) },
		"link for file": func(top string) {
			require.NoError(t, os.Remove(filepath.Join(top, "b/f")))
			require.NoError(t, os.Symlink(filepath.Join(outside, "f"), filepath.Join(top, "b/f")))
		},
		"pipe for file": func(top string) {
			require.NoError(t, os.Remove(filepath.Join(top, "b/f")))
			mkfifo(t, filepath.Join(top, "b/f"))
		},
		"pipe for directory": func(top string) {
			require.NoError(t, os.RemoveAll(filepath.Join(top, "b")))
			mkfifo(t, filepath.Join(top, "b"))
		},
	} {
		found, dir, _ := walk(func(string, Found) {})
		f := found[len(found)-1]
		require.Equal(t, "top/b/f", f.Path)
		swap(filepath.Join(dir, "top"))
		_, err := f.Open()
		require.Error(t, err, name)
	}
}

// TestPipeForFile: a pipe that nobody writes to is opened without waiting, and refused.
func TestPipeForFile(t *testing.T) {
	dir := t.TempDir()
	if !mkfifo(t, filepath.Join(dir, "pipe")) {
		t.Skip("no named pipes here")
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	f, err := openFolder(dir)
	require.NoError(t, err)
	defer f.close()
	seen, err := os.Lstat(filepath.Join(dir, "file"))
	require.NoError(t, err)
	_, err = openFile(f.root, "pipe", os.O_RDONLY, seen)
	require.ErrorIs(t, err, ErrChanged)
	_, err = f.open("pipe")
	require.ErrorIs(t, err, ErrPath)
}

func TestChanged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	found := func() (f Found) {
		t.Helper()
		require.NoError(t, os.WriteFile(file, []byte("12345"), 0o600))
		require.NoError(t, os.Chtimes(file, time.Time{}, when))
		require.NoError(t, walkAll(t, []Source{{file, "f"}}, func(g Found) error { f = g; return nil }))
		return f
	}
	for name, change := range map[string]func(){
		"longer":   func() { require.NoError(t, os.WriteFile(file, []byte("123456"), 0o600)) },
		"later":    func() { require.NoError(t, os.Chtimes(file, time.Time{}, when.Add(1))) },
		"replaced": func() { require.NoError(t, os.Rename(file, file+".old")); found() },
	} {
		f := found()
		open, err := f.Open()
		require.NoError(t, err)
		require.NoError(t, open.Close())
		change()
		_, err = f.Open()
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
	assert.Equal(t, proto.NoSpace, CodeOf(errors.Join(syscall.Errno(errQuota), fs.ErrClosed)))
	assert.Equal(t, proto.Failed, CodeOf(syscall.EIO))
	for code, err := range map[proto.Code]error{
		proto.NoSpace: &fs.PathError{Err: syscall.ENOSPC}, proto.TooBig: &fs.PathError{Err: syscall.EFBIG},
		proto.OK: nil, proto.Exists: ErrExists, proto.UnsafePath: ErrPath, proto.NoPermission: fs.ErrPermission, proto.Failed: errors.New("x"),
	} {
		assert.Equal(t, code, CodeOf(err))
	}
}
