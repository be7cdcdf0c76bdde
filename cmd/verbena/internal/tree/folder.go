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

// folder is an open directory. It opens directories below it without following symbolic links,
// even links that are made at the same time: it opens each component of a path in the
// directory before, and checks that it is the directory that was seen there. Its methods may
// be called from any goroutine.
type folder struct {
	root *os.Root

	mu     sync.Mutex
	last   *subfolder // opened last; the next lookup is usually in the same directory
	opened int        // directories opened so far: the cost of all lookups
}

// subfolder is an open directory below a folder. Pass only names of one component to the
// methods of its os.Root, which follows links in longer paths.
type subfolder struct {
	*os.Root
	path  string // relative, with slashes; "." for the folder itself
	users int    // protected by folder.mu
}

// openFolder opens a directory. It follows symbolic links on the way to it.
func openFolder(dir string) (*folder, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &folder{root: root, last: &subfolder{Root: root, path: ".", users: 1}}, nil
}

// errNoFolder: a component of a path is not a directory, but a symbolic link, for instance.
var errNoFolder = fmt.Errorf("%w: not a directory; symbolic links are not followed", ErrPath)

// open opens a directory. The caller returns it with release. Each component that differs from
// the last directory costs a few system calls.
func (f *folder) open(p string) (*subfolder, error) {
	f.mu.Lock()
	from := f.last
	from.users++
	f.mu.Unlock()
	if from.path == p {
		return from, nil
	}
	defer f.release(from)
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
	sub := &subfolder{Root: at, path: p, users: 2} // the caller and f.last
	f.mu.Lock()
	old := f.last
	f.last = sub
	f.opened += opened
	f.mu.Unlock()
	f.release(old)
	return sub, nil
}

// release returns a directory that open has opened. The last user closes it.
func (f *folder) release(s *subfolder) {
	f.mu.Lock()
	s.users--
	unused := s.users == 0 && s.Root != f.root
	f.mu.Unlock()
	if unused {
		_ = s.Close()
	}
}

// in calls do with the directory that a path leads to, and the last component of the path.
func (f *folder) in(p string, do func(dir *os.Root, name string) error) error {
	dir, err := f.open(path.Dir(p))
	if err != nil {
		return err
	}
	defer f.release(dir)
	return do(dir.Root, path.Base(p))
}

// close closes all directories. After it, no method except release may be called.
func (f *folder) close() error {
	f.release(f.last)
	return f.root.Close()
}

// descend opens a directory in another one.
func descend(in *os.Root, name string) (*os.Root, error) {
	seen, err := in.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !seen.IsDir() {
		return nil, errNoFolder
	}
	// The dot makes the system open the name as a directory: opening a pipe in its place
	// cannot block.
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

// openFile opens a file in a directory, if it is the file that was seen there. It does not
// block on a pipe.
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
		return fmt.Errorf("%w: it was replaced meanwhile", ErrChanged)
	}
	return nil
}
