package descriptor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFile writes a descriptor, binary or armored, to a file that only its owner may read
// (mode 0600). A reader sees the old file or all of the new one: WriteFile writes a temporary
// file in the same folder, and then renames it. When WriteFile fails, the old file is
// unchanged and no temporary file is left.
//
// A symbolic link to a regular file, or to nothing, is replaced. If path is anything but a
// regular file (a folder, a device, a pipe), it is left alone and the error matches ErrFile.
func WriteFile(path string, b []byte) (err error) {
	if len(b) > MaxFile {
		return fmt.Errorf("write descriptor to %s: %w: %d bytes; readers accept at most %d", path, ErrTooBig, len(b), MaxFile)
	}
	// As root, a rename would replace even a device such as /dev/stdout.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("write descriptor to %s: %w but %s; give the path of a file", path, ErrFile, typeName(info.Mode()))
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".verbena-*")
	if err != nil {
		return fmt.Errorf("write descriptor to %s: %w; its folder must exist and be writable", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write descriptor to %s: %w", path, err), ignoreClosed(f.Close()), os.Remove(f.Name()))
		}
	}()
	if _, err = f.Write(b); err != nil {
		return err
	}
	// Sync before the rename: otherwise a crash could leave the new name on an empty file. The
	// folder is not synced, because a descriptor is void after a crash anyway.
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// ReadFile returns the content of a descriptor file, for Decode and all functions that take
// descriptors. It never waits: anything but a regular file gives an error that matches
// ErrFile. A missing file gives fs.ErrNotExist, and more than MaxFile bytes ErrTooBig.
func ReadFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, readError(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, notRegular(path, info.Mode())
	}
	f, err := openFile(path)
	if err != nil {
		return nil, readError(path, err)
	}
	defer func() { _ = f.Close() }()
	// Another file may have replaced it since the first Stat.
	if info, err = f.Stat(); err != nil {
		return nil, readError(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, notRegular(path, info.Mode())
	}
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, readError(path, err)
	}
	if len(b) > MaxFile {
		return nil, fmt.Errorf("read descriptor from %s: %w: more than %d bytes; check that it is the file that the peer exported",
			path, ErrTooBig, MaxFile)
	}
	return b, nil
}

func readError(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read descriptor: %w; give the path of the file that the peer exported", err)
	}
	return fmt.Errorf("read descriptor from %s: %w", path, err)
}

func notRegular(path string, mode fs.FileMode) error {
	return fmt.Errorf("read descriptor from %s: %w but %s; give the path of the file that the peer exported",
		path, ErrFile, typeName(mode))
}

func typeName(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a folder"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "something else"
}
