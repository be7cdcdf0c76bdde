package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
)

// Source is a file or directory to be sent.
type Source struct {
	Local string // where it is
	Name  string // what it is called at the receiver
}

// Sources checks what is named on a command line. A symbolic link that is named there is
// followed. Each gets the last component of its path as its name.
func Sources(args []string) ([]Source, error) {
	names := map[string]string{}
	var list []Source
	for _, arg := range args {
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

// Found is what the walk has found.
type Found struct {
	proto.Entry
	Local string      // where it is
	Info  fs.FileInfo // of a file
	Code  proto.Code  // why it cannot be sent, or OK
	Err   error       // likewise
}

// Walk calls f for everything below the sources, a directory before what is in it. What
// cannot be sent is reported with a Code; an error of f ends the walk.
func Walk(ctx context.Context, sources []Source, f func(Found) error) error {
	for _, s := range sources {
		if err := walk(ctx, s.Local, s.Name, f); err != nil {
			return err
		}
	}
	return nil
}

func walk(ctx context.Context, local, name string, f func(Found) error) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	found := Found{Entry: proto.Entry{Path: name}, Local: local}
	fail := func(code proto.Code, err error) error {
		found.Code, found.Err = code, err
		return f(found)
	}
	if err := CheckPath(name); err != nil {
		return fail(proto.UnsafePath, err)
	}
	info, err := os.Lstat(local)
	if err != nil {
		return fail(proto.Unreadable, err)
	}
	found.Mode, found.Modified = uint16(info.Mode().Perm()), info.ModTime()
	switch {
	case info.Mode().IsRegular():
		found.Type, found.Size, found.Info = proto.File, uint64(info.Size()), info
	case info.Mode()&fs.ModeSymlink != 0:
		found.Type = proto.Symlink
		if found.Target, err = os.Readlink(local); err != nil {
			return fail(proto.Unreadable, err)
		}
		found.Target = filepath.ToSlash(found.Target)
		if len(found.Target) > proto.MaxPath {
			return fail(proto.UnsafePath, fmt.Errorf("%w: the target of the link is too long", ErrPath))
		}
	case info.IsDir():
		found.Type = proto.Directory
		return walkDir(ctx, found, f)
	default:
		return fail(proto.BadType, fmt.Errorf("it is neither file, directory nor symbolic link (%v)", info.Mode().Type()))
	}
	return f(found)
}

func walkDir(ctx context.Context, dir Found, f func(Found) error) error {
	d, err := os.Open(dir.Local)
	var names []string
	if err == nil {
		names, err = d.Readdirnames(-1)
		err = errors.Join(err, d.Close())
	}
	if err != nil {
		dir.Code, dir.Err = proto.Unreadable, err
		return f(dir)
	}
	if err := f(dir); err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if err := walk(ctx, filepath.Join(dir.Local, name), dir.Path+"/"+name, f); err != nil {
			return err
		}
	}
	return nil
}

// ErrChanged: the file is not as it was when the transfer began.
var ErrChanged = errors.New("the file changed while it was sent")

// Open opens a file that the walk has found, and checks that it is still that file.
func Open(f *Found) (*os.File, error) {
	file, err := os.Open(f.Local)
	if err != nil {
		return nil, err
	}
	if err := Unchanged(file, f); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// Unchanged fails with ErrChanged unless an open file has the size and the time that the
// walk has found.
func Unchanged(file *os.File, f *Found) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(info, f.Info) || uint64(info.Size()) != f.Size || !info.ModTime().Equal(f.Modified) {
		return fmt.Errorf("%w: %s", ErrChanged, f.Local)
	}
	return nil
}

// Size is how many bytes there are below the sources, in all.
func Size(ctx context.Context, sources []Source) (total int64, err error) {
	err = Walk(ctx, sources, func(f Found) error {
		if f.Code == proto.OK {
			total += int64(f.Size)
		}
		return nil
	})
	return total, err
}
