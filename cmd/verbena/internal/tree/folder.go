package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
)

// folder is an open directory, and a way to the directories below it that follows no
// symbolic link, even one that was made meanwhile: each component of a path is opened in the
// directory before it, and has to be the directory that was seen there. Its methods may be
// called from any goroutine.
type folder struct {
	root *os.Root

	mu     sync.Mutex
	last   *subfolder // opened last: neighbours of a file are looked up next
	opened int        // directories so far, which is what names cost
}

// subfolder is an open directory below a folder. Only names of one component may be given to
// the methods of its os.Root, which would follow links in others.
type subfolder struct {
	*os.Root
	path  string // relative, with slashes; "." for the folder itself
	users int    // protected by folder.mu
}

// openFolder opens a directory. Symbolic links on the way to it are followed.
func openFolder(dir string) (*folder, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &folder{root: root, last: &subfolder{Root: root, path: ".", users: 1}}, nil
}

// errNoFolder: something on a path is no directory, but a symbolic link, for instance.
var errNoFolder = fmt.Errorf("%w: no directory; symbolic links are not followed", ErrPath)

// open opens a directory. The caller gives it back with done. It costs a few system
// calls for each component that differs from the last directory.
func (f *folder) open(p string) (*subfolder, error) {
	f.mu.Lock()
	from := f.last
	from.users++
	f.mu.Unlock()
	if from.path == p {
		return from, nil
	}
	defer f.done(from)
	at, rest := from.Root, p
	if from.path != "." {
		var below bool
		if rest, below = strings.CutPrefix(p, from.path+"/"); !below {
			at, rest = f.root, p
		}
	}
	if p == "." {
		rest = ""
	}
	first, opened := at, 0
	for depth := len(p) - len(rest); rest != ""; {
		name, behind, _ := strings.Cut(rest, "/")
		next, err := descend(at, name)
		opened++
		if at != first {
			_ = at.Close()
		}
		if err != nil {
			return nil, fmt.Errorf("its directory %s: %w", Show(p[:depth+len(name)]), Reason(err))
		}
		at, rest, depth = next, behind, depth+len(name)+1
	}
	sub := &subfolder{Root: at, path: p, users: 2} // the caller and last
	f.mu.Lock()
	old := f.last
	f.last = sub
	f.opened += opened
	f.mu.Unlock()
	f.done(old)
	return sub, nil
}

// done gives back what open has returned.
func (f *folder) done(s *subfolder) {
	f.mu.Lock()
	s.users--
	unused := s.users == 0 && s.Root != f.root
	f.mu.Unlock()
	if unused {
		_ = s.Close()
	}
}

// in calls a function with the directory that a path leads to, and the path's last component.
func (f *folder) in(p string, do func(dir *os.Root, name string) error) error {
	dir, err := f.open(path.Dir(p))
	if err != nil {
		return err
	}
	defer f.done(dir)
	return do(dir.Root, path.Base(p))
}

// close closes what is open. No other method may be called any more, but for done.
func (f *folder) close() error {
	f.done(f.last)
	return f.root.Close()
}

// descend opens a directory in another.
func descend(in *os.Root, name string) (*os.Root, error) {
	seen, err := in.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !seen.IsDir() {
		return nil, errNoFolder
	}
	// The dot has the name opened as a directory: a pipe in its place cannot hold this up.
	dir, err := in.OpenRoot(name + "/.")
	if err != nil {
		return nil, err
	}
	opened, err := dir.Stat(".")
	if err == nil {
		err = same(seen, opened)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// openFile opens a file in a directory, if it is the one that was seen there. It does not
// wait for the other end of a pipe.
func openFile(in *os.Root, name string, flag int, seen fs.FileInfo) (*os.File, error) {
	file, err := in.OpenFile(name, flag|nonblock, 0)
	if err != nil {
		return nil, err
	}
	opened, err := file.Stat()
	if err == nil {
		err = same(seen, opened)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func same(seen, opened fs.FileInfo) error {
	if !os.SameFile(seen, opened) {
		return fmt.Errorf("%w: something else came in its place", ErrChanged)
	}
	return nil
}
