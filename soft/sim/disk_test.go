package sim

import (
	"context"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

var _ fs.FS = (*Disk)(nil)

// put writes a file with as many writes as there are texts.
func put(s *Sim, open func(name string) (*File, error), name string, texts ...string) *File {
	f, err := open(name)
	require.NoError(s, err)
	for _, text := range texts {
		n, err := f.Write([]byte(text))
		require.NoError(s, err)
		require.Equal(s, len(text), n)
	}
	return f
}

func contentOf(s *Sim, d *Disk, name string) string {
	b, err := fs.ReadFile(d, name)
	require.NoError(s, err)
	return string(b)
}

func TestDisk(t *testing.T) {
	Check(t, 5, func(s *Sim) {
		d := s.Host("h").Disk()
		put(s, d.Create, "a", "one ", "two")
		put(s, d.Append, "a", " three")
		require.Equal(s, "one two three", contentOf(s, d, "a"))
		put(s, d.Append, "b", "x")
		require.NoError(s, d.Rename("a", "b"))
		require.Equal(s, "one two three", contentOf(s, d, "b"))
		put(s, d.Create, "b")
		require.Empty(s, contentOf(s, d, "b"))
		put(s, d.Create, "c", "y")
		list, err := fs.ReadDir(d, ".")
		require.NoError(s, err)
		require.Len(s, list, 2)
		require.NoError(s, d.Remove("b"))
		_, err = fs.ReadFile(d, "b")
		require.ErrorIs(s, err, fs.ErrNotExist)
		require.ErrorIs(s, d.Remove("b"), fs.ErrNotExist)
		require.ErrorIs(s, d.Rename("b", "c"), fs.ErrNotExist)
		_, err = d.Create("../b")
		require.ErrorIs(s, err, fs.ErrInvalid)
		require.ErrorIs(s, d.Rename("c", "."), fs.ErrInvalid)
	})
}

// A crash leaves what was synced, and any part of the rest.
func TestDiskCrash(t *testing.T) {
	Check(t, coverageSeeds, func(s *Sim) {
		h := s.Host("h")
		d := h.Disk()
		f := put(s, d.Create, "log", "synced ")
		require.NoError(s, f.Sync())
		require.NoError(s, d.Sync())
		require.Positive(s, s.Now())
		_, err := f.Write([]byte("first "))
		require.NoError(s, err)
		_, err = f.Write([]byte("second"))
		require.NoError(s, err)
		put(s, d.Create, "new", "n")
		h.Crash()
		_, err = f.Write([]byte("x"))
		require.ErrorIs(s, err, ErrCrashed)
		h.Restart()
		_, err = f.Write([]byte("x"))
		require.ErrorIs(s, err, ErrCrashed)
		require.ErrorIs(s, f.Sync(), ErrCrashed)

		log := contentOf(s, d, "log")
		require.True(s, strings.HasPrefix(log, "synced "), log)
		for at, c := range "synced first second" {
			require.True(s, at >= len(log) || rune(log[at]) == c || log[at] == 0 && at >= len("synced "), "%q", log)
		}
		_, err = d.Open("new")
		for name, is := range map[string]bool{ // in any order
			"all is lost": log == "synced ", "all is kept": log == "synced first second",
			"a hole": strings.HasSuffix(log, "\x00\x00second"), "the second write is lost": log == "synced first ",
			"a write is torn": len(log) == len("synced first second") && strings.Contains(log, "\x00") && !strings.HasSuffix(log, "second"), "a name is lost": err != nil, "a name is kept": err == nil,
		} {
			s.Sometimes(is, name)
		}
		put(s, d.Append, "log", "!")
		h.Crash() // what a crash has left is safe
		require.True(s, strings.HasPrefix(contentOf(s, d, "log"), log))
	})
}

// A file that replaces another is the old or the new one, if it was synced before.
func TestDiskReplace(t *testing.T) {
	Check(t, coverageSeeds, func(s *Sim) {
		h := s.Host("h")
		d := h.Disk()
		require.NoError(s, put(s, d.Create, "f", "old").Sync())
		require.NoError(s, d.Sync())
		require.NoError(s, put(s, d.Create, "f.new", "new").Sync())
		require.NoError(s, d.Rename("f.new", "f"))
		h.Crash()
		f := contentOf(s, d, "f")
		require.Contains(s, []string{"old", "new"}, f)
		s.Sometimes(f == "old", "old")
		s.Sometimes(f == "new", "new")
	})
}

// A crash in the middle of a sync leaves any part, and the sync fails.
func TestDiskCrashInSync(t *testing.T) {
	Check(t, 20, func(s *Sim) {
		h := s.Host("h")
		var failed error
		h.Run(func(ctx context.Context, _ verbs.Device) error {
			f := put(s, h.Disk().Append, "log", "x")
			if err := f.Sync(); err != nil {
				failed = err
			}
			<-ctx.Done()
			return nil
		})
		s.Run(0)
		h.Crash()
		s.Run(time.Second)
		require.ErrorIs(s, failed, ErrCrashed)
	})
}

// Reads fail while the Nemesis says so.
func TestBadDisk(t *testing.T) {
	Check(t, 5, func(s *Sim) {
		d := s.Host("h").Disk()
		put(s, d.Create, "a", "x")
		n := s.Nemesis(Chaos{BadDisks: 1})
		s.RunUntil(func() bool {
			_, err := d.Open("a")
			return err != nil
		}, time.Minute)
		_, err := d.Open("a")
		require.ErrorIs(s, err, syscall.EIO)
		n.Stop()
		require.Equal(s, "x", contentOf(s, d, "a"))
	})
}
