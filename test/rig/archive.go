package rig

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A tree is the content of an archive for the guest's root file system, by absolute path.
// Parent folders are added automatically.
type tree struct {
	entries map[string]entry
	base    *tree // unpacked before this one; nil for the first
}

// An entry is a folder, a symbolic link, or a file, whose content is in memory or on the host.
type entry struct {
	mode    fs.FileMode
	content []byte // of a file, or the target of a link
	source  string // host path, when there is no content
	stamp   string // changes when the source changes
	size    int64
}

func newTree(base *tree) *tree {
	return &tree{entries: map[string]entry{}, base: base}
}

func (t *tree) has(name string) bool {
	for ; t != nil; t = t.base {
		if _, ok := t.entries[name]; ok {
			return true
		}
	}
	return false
}

func (t *tree) put(name string, e entry) {
	t.mkdir(path.Dir(name))
	t.entries[name] = e
}

// mkdir does not change an existing path: in the image some folders are links to others.
func (t *tree) mkdir(name string) {
	if name == "/" || t.has(name) {
		return
	}
	t.put(name, entry{mode: fs.ModeDir | 0o755})
}

func (t *tree) link(name, target string) {
	t.put(name, entry{mode: fs.ModeSymlink | 0o777, content: []byte(target), size: int64(len(target))})
}

func (t *tree) write(name string, mode fs.FileMode, content string) {
	t.put(name, entry{mode: mode, content: []byte(content), size: int64(len(content))})
}

// copy adds a file or a folder of the host, following symbolic links.
func (t *tree) copy(name, source string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	switch {
	case info.IsDir():
		return filepath.WalkDir(source, func(file string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			inside := path.Join(name, filepath.ToSlash(strings.TrimPrefix(file, source)))
			if d.IsDir() {
				t.mkdir(inside)
				return nil
			}
			return t.copy(inside, file)
		})
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is neither a file nor a folder", source)
	case info.Size() > math.MaxUint32:
		return fmt.Errorf("%s is longer than an archive can hold", source)
	}
	t.put(name, entry{
		mode:   info.Mode().Perm(),
		source: source,
		stamp:  fmt.Sprintf("%s %d %d", source, info.Size(), info.ModTime().UnixNano()),
		size:   info.Size(),
	})
	return nil
}

// describe writes everything that determines the archive's bytes, for a checksum.
func (t *tree) describe(w io.Writer) {
	for _, name := range t.names() {
		e := t.entries[name]
		fmt.Fprintf(w, "%s %o %q %q\n", name, e.mode, e.content, e.stamp)
	}
}

// names returns the paths in an order in which parents come first.
func (t *tree) names() []string {
	return slices.Sorted(maps.Keys(t.entries))
}

// archive writes the tree in cpio's "new ASCII" format, which the kernel unpacks (Linux,
// Documentation/driver-api/early-userspace/buffer-format.rst).
func (t *tree) archive(w io.Writer) error {
	for i, name := range t.names() {
		if err := t.entries[name].archive(w, strings.TrimPrefix(name, "/"), i+1); err != nil {
			return fmt.Errorf("archive %s: %w", name, err)
		}
	}
	return entry{}.archive(w, "TRAILER!!!", 0)
}

// File types in cpio's mode, which are those of stat(2).
const (
	cpioDir  = 0o040000
	cpioFile = 0o100000
	cpioLink = 0o120000
)

func (e entry) archive(w io.Writer, name string, inode int) error {
	mode := uint32(e.mode.Perm())
	switch {
	case e.mode.IsDir():
		mode |= cpioDir
	case e.mode&fs.ModeSymlink != 0:
		mode |= cpioLink
	case inode != 0:
		mode |= cpioFile
	}
	var content io.Reader = bytes.NewReader(e.content)
	if e.source != "" {
		f, err := os.Open(e.source)
		if err != nil {
			return err
		}
		defer f.Close()
		content = f
	}

	// In order: inode, mode, uid, gid, links, mtime, size, device of the file
	// (2), device it stands for (2), length of the name with its NUL, checksum.
	header := "070701"
	for _, field := range []uint32{uint32(inode), mode, 0, 0, 1, 0, uint32(e.size), 0, 0, 0, 0, uint32(len(name) + 1), 0} {
		header += fmt.Sprintf("%08x", field)
	}
	header += name + "\x00"
	if _, err := io.WriteString(w, header+pad(int64(len(header)))); err != nil {
		return err
	}
	if n, err := io.Copy(w, content); err != nil {
		return err
	} else if n != e.size {
		return fmt.Errorf("%s changed while it was read", e.source)
	}
	_, err := io.WriteString(w, pad(e.size))
	return err
}

// pad returns the padding to a multiple of four bytes.
func pad(n int64) string {
	return "\x00\x00\x00"[:-n&3]
}
