package sim

import (
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing/fstest"
	"time"

	"github.com/verbena-rdma/verbena/internal/goroutine"
)

// Disk is the disk of a host: files in one folder, which survive crashes as far as they were synced. When the
// host crashes, the seed decides of each write since the last [File.Sync] whether it is lost, kept, or torn,
// so that any part of it is on the disk; and how many of the changes of names since the last Sync, in
// their order, are kept.
//
// Programs that shall run on disks of the system, too, read through [fs.FS], and write through an
// interface of their own. Its methods are those of [os.Root] with the same names: Append is
// OpenFile with O_APPEND, O_CREATE and O_WRONLY, and Sync that of the [os.File] of the folder.
//
// A sync takes up to 10 ms of the simulation. All else takes no time.
type Disk struct {
	h      *Host
	random *rand.Rand // how long syncs take

	// Guarded by the simulation's lock.
	files   map[string]*inode
	synced  map[string]*inode // what a crash leaves in any case
	renames pending[rename]   // since
	bad     causes            // of errors of reads
	crashes int
}

// setBad sets what makes reads fail.
func (d *Disk) setBad(change func(causes) causes) {
	d.h.s.mu.Lock()
	defer d.h.s.mu.Unlock()
	d.bad = change(d.bad)
}

// inode is a file without its name.
type inode struct {
	data   []byte
	synced []byte // what a crash leaves in any case
	writes pending[diskWrite]
}

// pending are changes since the last sync. Syncs may overlap.
type pending[T any] struct {
	list   []T
	synced int // changes before list
}

func (p *pending[T]) end() int { return p.synced + len(p.list) }

// sync drops the changes before end, and reports whether there are any.
func (p *pending[T]) sync(end int) bool {
	n := end - p.synced
	if n > 0 {
		p.list, p.synced = p.list[n:], end
	}
	return n > 0
}

// diskWrite is a write since the last sync.
type diskWrite struct {
	at       int
	data     []byte
	truncate bool // the file has lost all before
}

// rename is a change of names: a file gets one, or loses one, or both.
type rename struct {
	from, to string // empty: none
	file     *inode
}

func (r *rename) apply(files map[string]*inode) {
	delete(files, r.from)
	if r.to != "" {
		files[r.to] = r.file
	}
}

// Disk returns the disk of the host.
func (h *Host) Disk() *Disk { return h.disk }

func newDisk(h *Host) *Disk {
	return &Disk{
		h: h, random: rand.New(rand.NewPCG(h.s.seed, uint64(h.index)<<8|4)),
		files: make(map[string]*inode), synced: make(map[string]*inode),
	}
}

// crash draws what is left. The lock is held.
func (d *Disk) crash() {
	d.crashes++
	// The numbers depend on the time of this crash, not on what was drawn before: without an earlier
	// fault, this one tears the same.
	random := rand.New(rand.NewPCG(d.h.s.seed^uint64(d.h.s.elapsed())<<16, uint64(d.h.index)<<8|5))
	for _, r := range d.renames.list[:random.IntN(len(d.renames.list)+1)] {
		r.apply(d.synced)
	}
	d.renames, d.files = pending[rename]{}, maps.Clone(d.synced)
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		left := d.files[name].crash(random)
		d.files[name], d.synced[name] = left, left
	}
}

// crash returns what is left of a file. Those who have it open keep the old one.
func (f *inode) crash(random *rand.Rand) *inode {
	left := &inode{data: slices.Clone(f.synced)}
	for _, w := range f.writes.list {
		switch n := len(w.data); random.IntN(3) {
		case 0: // kept
			left.write(w, 0, n)
		case 1: // torn, but for a truncation, which is kept
			first := random.IntN(n + 1)
			left.write(w, first, first+random.IntN(n-first+1))
		}
	}
	left.synced, left.writes = slices.Clone(left.data), pending[diskWrite]{}
	return left
}

// write writes a part of w, all of which is in the file then.
func (f *inode) write(w diskWrite, first, last int) {
	if w.truncate {
		f.data = nil
	}
	if missing := w.at + len(w.data) - len(f.data); missing > 0 {
		f.data = append(f.data, make([]byte, missing)...)
	}
	copy(f.data[w.at+first:], w.data[first:last])
	f.writes.list = append(f.writes.list, w)
}

// Open implements [fs.FS]. The file, or the list of the files that "." is, stays as it is now.
func (d *Disk) Open(name string) (fs.File, error) {
	d.h.s.mu.Lock()
	defer d.h.s.mu.Unlock()
	if len(d.bad) > 0 {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EIO}
	}
	now := make(fstest.MapFS)
	for n, f := range d.files {
		if n == name || name == "." {
			now[n] = &fstest.MapFile{Data: slices.Clone(f.data), Mode: 0o600}
		}
	}
	return now.Open(name)
}

// File is a file that is open for writing.
type File struct {
	d     *Disk
	name  string
	file  *inode
	since int // as many crashes

	closed bool // guarded by the simulation's lock
}

// Create opens a file for writing, and makes it empty.
func (d *Disk) Create(name string) (*File, error) { return d.openFile(name, true) }

// Append opens a file for writing at its end.
func (d *Disk) Append(name string) (*File, error) { return d.openFile(name, false) }

// validName reports whether a file in the folder may have that name.
func validName(name string) bool {
	return fs.ValidPath(name) && name != "." && !strings.Contains(name, "/")
}

func (d *Disk) openFile(name string, truncate bool) (*File, error) {
	d.h.s.mu.Lock()
	defer d.h.s.mu.Unlock()
	f := &File{d: d, name: name, file: d.files[name], since: d.crashes}
	switch err := f.check("open"); {
	case err != nil:
		return nil, err
	case !validName(name):
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	case f.file == nil:
		f.file = &inode{}
		d.rename(rename{to: name, file: f.file})
	case truncate:
		f.file.write(diskWrite{truncate: true}, 0, 0)
	}
	return f, nil
}

// check fails if the file was closed, or the host has crashed since it was opened. The lock is held.
func (f *File) check(op string) error {
	if f.closed {
		return &fs.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
	}
	if f.d.h.down || f.d.crashes != f.since {
		return &fs.PathError{Op: op, Path: f.name, Err: ErrCrashed}
	}
	return nil
}

// Write writes at the end of the file. Only Sync makes sure that a crash leaves it.
func (f *File) Write(b []byte) (int, error) {
	f.d.h.s.mu.Lock()
	defer f.d.h.s.mu.Unlock()
	if err := f.check("write"); err != nil {
		return 0, err
	}
	f.file.write(diskWrite{at: len(f.file.data), data: slices.Clone(b)}, 0, len(b))
	return len(b), nil
}

// Sync returns when all that was written before is safe from crashes. The name of a new file is safe
// only after [Disk.Sync].
func (f *File) Sync() error {
	f.d.h.s.mu.Lock()
	data, end := slices.Clone(f.file.data), f.file.writes.end()
	f.d.h.s.mu.Unlock()
	return f.sync(func() {
		if f.file.writes.sync(end) {
			f.file.synced = data
		}
	})
}

// sync calls done, unless the host crashes before.
func (f *File) sync(done func()) error {
	s := f.d.h.s
	s.mu.Lock()
	takes := 1 + time.Duration(f.d.random.Int64N(int64(10*time.Millisecond)))
	s.mu.Unlock()
	if s.driver != goroutine.Current() {
		f.d.h.Sleep(takes)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := f.check("sync")
	if err == nil {
		done()
	}
	return err
}

// Close closes the file. It does not sync it.
func (f *File) Close() error {
	f.d.h.s.mu.Lock()
	defer f.d.h.s.mu.Unlock()
	if f.closed {
		return &fs.PathError{Op: "close", Path: f.name, Err: fs.ErrClosed}
	}
	f.closed = true
	return nil
}

// Rename gives a file another name, and removes the one that had it.
func (d *Disk) Rename(from, to string) error { return d.change("rename", from, to) }

// Remove removes a file.
func (d *Disk) Remove(name string) error { return d.change("remove", name, "") }

func (d *Disk) change(op, from, to string) error {
	d.h.s.mu.Lock()
	defer d.h.s.mu.Unlock()
	f := &File{d: d, name: from, file: d.files[from], since: d.crashes}
	switch err := f.check(op); {
	case err != nil:
		return err
	case f.file == nil:
		return &fs.PathError{Op: op, Path: from, Err: fs.ErrNotExist}
	case to != "" && !validName(to):
		return &fs.PathError{Op: op, Path: to, Err: fs.ErrInvalid}
	}
	d.rename(rename{from, to, f.file})
	return nil
}

// rename is a change of names. The lock is held.
func (d *Disk) rename(r rename) {
	r.apply(d.files)
	d.renames.list = append(d.renames.list, r)
}

// Sync returns when all changes of names before are safe from crashes.
func (d *Disk) Sync() error {
	d.h.s.mu.Lock()
	names, end := maps.Clone(d.files), d.renames.end()
	f := &File{d: d, name: ".", since: d.crashes}
	d.h.s.mu.Unlock()
	return f.sync(func() {
		if d.renames.sync(end) {
			d.synced = names
		}
	})
}
