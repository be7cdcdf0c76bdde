package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
)

// Source is a file or directory to send.
type Source struct {
	Local string // its path on this machine
	Name  string // its name at the receiver
}

// Sources checks the files and directories of a command line. It follows symbolic links among
// them. The name of each is the last component of its path.
func Sources(args []string) ([]Source, error) {
	names := map[string]string{}
	var list []Source
	for _, arg := range args {
		if arg == "" {
			return nil, errors.New("an argument is empty: the working directory is named \".\"")
		}
		abs, err := filepath.Abs(arg)
		if err != nil {
			return nil, err
		}
		s := Source{Name: filepath.Base(abs)}
		if s.Local, err = filepath.EvalSymlinks(abs); err != nil {
			return nil, err
		}
		if err := CheckPath(s.Name); err != nil {
			return nil, fmt.Errorf("%s: %w", arg, err)
		}
		if other, ok := names[s.Name]; ok {
			return nil, fmt.Errorf("%s and %s would both be named %s at the receiver; send them one after the other, into different folders", other, arg, s.Name)
		}
		names[s.Name] = arg
		list = append(list, s)
	}
	return list, nil
}

// Files are the sources and everything below them. Below the folders that contain the sources,
// no symbolic link is followed, even one that is made at the same time. The methods may be
// called from any goroutine.
type Files struct {
	sources []Source

	mu      sync.Mutex
	folders map[string]*folder // the folders that contain the sources
}

// NewFiles makes the Files of sources. Walk opens them.
func NewFiles(sources []Source) *Files {
	return &Files{sources: sources, folders: map[string]*folder{}}
}

// Close closes the folders. After it, no other method may be called.
func (s *Files) Close() error {
	var err error
	for _, f := range s.folders {
		err = errors.Join(err, f.close())
	}
	return err
}

func (s *Files) folder(dir string) (*folder, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.folders[dir]; f != nil {
		return f, nil
	}
	f, err := openFolder(dir)
	if err == nil {
		s.folders[dir] = f
	}
	return f, err
}

// Found is an entry that the walk has found.
type Found struct {
	proto.Entry
	Local string      // its path on this machine
	Info  fs.FileInfo // of a file
	Code  proto.Code  // OK, or why it cannot be sent
	Err   error       // likewise

	folder *folder // the folder that contains the source
	path   string  // in folder, with slashes
}

// Walk calls f for the sources and everything below them, a directory before its contents. An
// entry that cannot be sent is passed with a Code. An error of f ends the walk.
func (s *Files) Walk(ctx context.Context, f func(Found) error) error {
	for _, source := range s.sources {
		found := Found{Entry: proto.Entry{Path: source.Name}, Local: source.Local, path: filepath.Base(source.Local)}
		var err error
		if found.folder, err = s.folder(filepath.Dir(source.Local)); err != nil {
			found.Code, found.Err = proto.Unreadable, err
			err = f(found)
		} else {
			err = walk(ctx, found, f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func walk(ctx context.Context, found Found, f func(Found) error) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := found.look(); err != nil {
		switch {
		case found.Code != proto.OK:
		case errors.Is(err, ErrPath):
			found.Code = proto.UnsafePath
		default:
			found.Code = proto.Unreadable
		}
		found.Err = err
		return f(found)
	}
	if found.Type == proto.Directory {
		return walkDir(ctx, found, f)
	}
	return f(found)
}

// look fills in the facts about an entry.
func (f *Found) look() error {
	if err := CheckPath(f.Path); err != nil {
		return err
	}
	return f.folder.in(f.path, func(dir *os.Root, name string) error {
		info, err := dir.Lstat(name)
		if err != nil {
			return Reason(err)
		}
		f.Mode, f.Modified = uint16(info.Mode().Perm()), info.ModTime()
		switch {
		case info.Mode().IsRegular():
			f.Type, f.Size, f.Info = proto.File, uint64(info.Size()), info
		case info.Mode()&fs.ModeSymlink != 0:
			f.Type = proto.Symlink
			if f.Target, err = dir.Readlink(name); err != nil {
				return Reason(err)
			}
			f.Target = filepath.ToSlash(f.Target)
			if len(f.Target) > proto.MaxPath {
				return fmt.Errorf("%w: the target of the link is too long", ErrPath)
			}
		case info.IsDir():
			f.Type = proto.Directory
		default:
			f.Code = proto.BadType
			return fmt.Errorf("it is not a file, directory or symbolic link (%v)", info.Mode().Type())
		}
		return nil
	})
}

func walkDir(ctx context.Context, dir Found, f func(Found) error) error {
	names, err := dir.names()
	if err != nil {
		dir.Code, dir.Err = proto.Unreadable, err
		return f(dir)
	}
	if err := f(dir); err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		found := Found{Entry: proto.Entry{Path: dir.Path + "/" + name}, Local: filepath.Join(dir.Local, name),
			folder: dir.folder, path: dir.path + "/" + name}
		if err := walk(ctx, found, f); err != nil {
			return err
		}
	}
	return nil
}

// names returns the names in a directory.
func (f *Found) names() ([]string, error) {
	dir, err := f.folder.open(f.path)
	if err != nil {
		return nil, err
	}
	defer f.folder.release(dir)
	list, err := dir.Open(".")
	if err != nil {
		return nil, Reason(err)
	}
	names, err := list.Readdirnames(-1)
	return names, Reason(errors.Join(err, list.Close()))
}

var (
	// ErrChanged: the file has changed since the walk found it.
	ErrChanged = errors.New("the file changed while it was sent")
	// ErrSpecial: the system generates the file, like those in /proc.
	ErrSpecial = errors.New("its content does not have the size that the system reports, as for files in /proc and /sys; copy it and send the copy")
)

// Open opens a file that the walk has found, and checks that it is still the same file.
func (f *Found) Open() (file *os.File, err error) {
	err = f.folder.in(f.path, func(dir *os.Root, name string) (err error) {
		file, err = openFile(dir, name, os.O_RDONLY, f.Info)
		return err
	})
	if err != nil {
		return nil, Reason(err)
	}
	if err := f.unchanged(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// unchanged fails with ErrChanged unless an open file still has the size and the time that the
// walk found.
func (f *Found) unchanged(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if uint64(info.Size()) != f.Size || !info.ModTime().Equal(f.Modified) {
		return fmt.Errorf("%w: %s", ErrChanged, f.Local)
	}
	return nil
}

// CheckEnd fails with ErrChanged unless an open file has the size and the time that the walk
// found. It fails with ErrSpecial if the content does not end at that size: it goes on, or it
// ended earlier, which the caller reports with complete false.
func (f *Found) CheckEnd(file *os.File, complete bool) error {
	if err := f.unchanged(file); err != nil {
		return err
	}
	more, err := byteAt(file, int64(f.Size))
	if more || !complete || errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ESPIPE) {
		return ErrSpecial
	}
	return err
}

// Probe fails with ErrSpecial if a file of size zero has content: the system reports no size
// for files that it generates.
func (f *Found) Probe() error {
	if f.Type != proto.File || f.Size != 0 {
		return nil
	}
	file, err := f.Open()
	if err != nil {
		return err
	}
	return errors.Join(f.CheckEnd(file, true), file.Close())
}

// Size is the number of bytes of all files below the sources.
func Size(ctx context.Context, sources []Source) (total int64, err error) {
	files := NewFiles(sources)
	err = files.Walk(ctx, func(f Found) error {
		if f.Code == proto.OK {
			total += int64(f.Size)
		}
		return nil
	})
	return total, errors.Join(err, files.Close())
}
