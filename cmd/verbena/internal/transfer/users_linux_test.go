package transfer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
	"github.com/verbena-rdma/verbena/test/netns"
)

// nobody is a user that has no permissions of its own.
const nobody = 65534

// becomeUser makes this process one of another user, with a umask of 0027.
func becomeUser(user int) {
	syscall.Umask(0o027)
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(user), syscall.Setuid(user)); err != nil {
		panic(err)
	}
}

// needRoot skips a test that starts processes of other users.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		netns.Need(t, fs.ErrPermission, "root, to start processes of another user")
	}
}

// folderOf makes a directory below one that other users can reach.
func folderOf(t *testing.T, user int) string {
	t.Helper()
	dir := t.TempDir()
	for up := dir; strings.HasPrefix(filepath.Base(up), "0") || up == dir; up = filepath.Dir(up) {
		require.NoError(t, os.Chmod(filepath.Dir(up), 0o755))
	}
	require.NoError(t, os.Chown(dir, user, user))
	return dir
}

// put makes a file or, with a name that ends with a slash, a directory.
func put(t *testing.T, owner int, name, content string, mode fs.FileMode) {
	t.Helper()
	if strings.HasSuffix(name, "/") {
		require.NoError(t, os.MkdirAll(name, 0o777))
	} else {
		require.NoError(t, os.WriteFile(name, []byte(content), 0o666))
		require.NoError(t, os.Chtimes(name, time.Time{}, time.Unix(1_600_000_000, 0)))
	}
	require.NoError(t, os.Chown(name, owner, owner))
	require.NoError(t, os.Chmod(name, mode))
}

// Another user of the machine sends what the receiver has, by name, size and time, but open to
// everybody. Nothing of it changes, and other senders are served meanwhile.
func TestOtherUserChangesNothing(t *testing.T) {
	needRoot(t)
	theirs, honest := folderOf(t, nobody), filepath.Join(t.TempDir(), "honest")
	put(t, nobody, filepath.Join(theirs, "key"), "forged", 0o666)
	put(t, nobody, filepath.Join(theirs, "private")+"/", "", 0o777)
	put(t, nobody, filepath.Join(theirs, "private/key"), "forged", 0o666)
	for i := range 20 {
		write(t, filepath.Join(honest, fmt.Sprint(i)), noise(uint64(i), 100<<10))
	}
	for _, policy := range []string{"refuse", "skip"} {
		t.Run(policy, func(t *testing.T) {
			into := folderOf(t, 0)
			put(t, 0, filepath.Join(into, "key"), "secret", 0o600)
			put(t, 0, filepath.Join(into, "private")+"/", "", 0o700)
			put(t, 0, filepath.Join(into, "private/key"), "secret", 0o400)
			private, err := os.Lstat(filepath.Join(into, "private"))
			require.NoError(t, err)
			_, addr := receiver(t, into, "-existing", policy)
			s := start(t, "send", "-limit", "1M", honest, addr)
			s.wait("connected")
			for range 3 {
				attack := startAs(t, nobody, "send", filepath.Join(theirs, "key"), filepath.Join(theirs, "private"), addr)
				assert.Equal(t, exitOK, attack.Code(), "%v %s", attack.events(), attack.Stderr)
			}
			assert.Equal(t, exitOK, s.Code(), "%v", s.events())
			same(t, honest, filepath.Join(into, "honest"))
			for name, mode := range map[string]fs.FileMode{"key": 0o600, "private": 0o700 | fs.ModeDir, "private/key": 0o400} {
				info, err := os.Lstat(filepath.Join(into, name))
				require.NoError(t, err)
				assert.Equal(t, mode, info.Mode(), name)
				if !info.IsDir() {
					content, err := os.ReadFile(filepath.Join(into, name))
					require.NoError(t, err)
					assert.Equal(t, "secret", string(content))
				} else {
					assert.Equal(t, private.ModTime(), info.ModTime())
				}
			}
		})
	}
}

// A receiver that is not root takes entries that it may not read itself, again and again. Its umask
// holds for what it makes.
func TestReceiverWithoutRoot(t *testing.T) {
	needRoot(t)
	from := filepath.Join(t.TempDir(), "d")
	modes := map[string]fs.FileMode{"none": 0, "write": 0o200, "open": 0o666}
	for name, mode := range modes {
		put(t, 0, filepath.Join(from, name)+"/", "", 0o777)
		put(t, 0, filepath.Join(from, name, "file"), "content", mode)
		put(t, 0, filepath.Join(from, name)+"/", "", mode|0o111&(mode>>2))
	}
	require.NoError(t, os.Chmod(filepath.Join(from, "open"), 0o777))
	put(t, 0, filepath.Join(from, "large"), string(noise(8, 2*proto.BlockSize+1)), 0)
	into := folderOf(t, nobody)
	// An earlier transfer has ended while it put the file in its place.
	work := filepath.Join(into, tree.WorkDir)
	put(t, nobody, work+"/", "", 0o700)
	part := filepath.Join(work, tree.PartName("d/large")+".part")
	put(t, nobody, part, "", 0)
	require.NoError(t, os.Chtimes(part, time.Time{}, time.Now()))
	for _, policy := range []string{"refuse", "refuse", "skip", "overwrite", "overwrite"} {
		r := startAs(t, nobody, "receive", "-l", "127.0.0.1:0", "-once", "-existing", policy, into)
		addr, _ := r.wait("listening")["address"].(string)
		s, code := sends(t, from, addr)
		require.Equal(t, exitOK, code, "%s: %v", policy, s.events())
		require.Equal(t, exitOK, r.Code())
		for name, mode := range modes {
			info, err := os.Lstat(filepath.Join(into, "d", name, "file"))
			require.NoError(t, err)
			assert.Equal(t, mode&^0o027, info.Mode(), "%s: %s/file", policy, name)
			assert.EqualValues(t, nobody, info.Sys().(*syscall.Stat_t).Uid)
			info, err = os.Lstat(filepath.Join(into, "d", name))
			require.NoError(t, err)
			want := mode | 0o500 // so that it can be looked at
			if name == "open" {
				want = 0o750
			}
			assert.Equal(t, want|fs.ModeDir, info.Mode(), "%s: %s", policy, name)
		}
	}
}
