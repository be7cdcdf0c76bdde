package tree

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/internal/errno"
)

// Policy decides about an entry whose name is in use. A file whose size and time of modification are
// as announced counts as the same; its content is not compared. Refuse and Skip change nothing of
// existing files and directories, not even permissions and times.
type Policy int

// The policies.
const (
	Refuse    Policy = iota // files that differ stay; the entry is refused
	Skip                    // files that differ stay; the entry counts as present
	Overwrite               // files that differ are replaced once the new ones are complete; others, and directories, get the announced permissions
)

// ParsePolicy reads the value of a flag.
func ParsePolicy(s string) (Policy, error) {
	switch s {
	case "refuse":
		return Refuse, nil
	case "skip":
		return Skip, nil
	case "overwrite":
		return Overwrite, nil
	}
	return 0, fmt.Errorf("%q is not refuse, skip or overwrite", s)
}

// ErrExists: something else has that name.
var ErrExists = errors.New("exists")

// Dest is the folder that receives. Its methods may be called from any goroutine. Names must
// have passed CheckPath. Its methods follow no symbolic link, even one that is made at the
// same time.
type Dest struct {
	dir    string
	folder *folder
	work   *os.Root // WorkDir
	lock   *os.File // WorkDir, locked
	policy Policy
	claims sync.Mutex // held from looking at a claim, or making its directory, to changing the claim
}

// OpenDest opens the folder, and makes it if it is missing. It fails if another process
// receives into the folder.
func OpenDest(dir string, policy Policy) (d *Dest, err error) {
	_ = umask() // before there are sessions: reading it changes it for a moment
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	d = &Dest{dir: dir, policy: policy}
	if d.folder, err = openFolder(dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = d.Close()
			d, err = nil, fmt.Errorf("receive into %s: %w", dir, err)
		}
	}()
	for range 10 { // a process that ends removes WorkDir
		if again, err := d.openWork(); !again {
			if err != nil {
				return d, err
			}
			return d, d.removeOld()
		}
	}
	return d, fmt.Errorf("%s appears and disappears", WorkDir)
}

// openWork makes and locks the folder for incomplete files. A transfer that resumes trusts its
// contents, which become files, so no other user may have access to it. again reports that
// another process has removed the folder in the meantime.
func (d *Dest) openWork() (again bool, err error) {
	root := d.folder.root
	if err := root.Mkdir(WorkDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	work, err := descend(root, WorkDir)
	if errors.Is(err, errNoFolder) {
		err = fmt.Errorf("%s exists and is not a directory; incomplete files are kept there", WorkDir)
	}
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrChanged), err
	}
	lock, err := work.Open(".")
	if err != nil {
		return errors.Is(err, fs.ErrNotExist), errors.Join(err, work.Close())
	}
	defer func() {
		if again || err != nil {
			err = errors.Join(err, lock.Close(), work.Close())
		}
	}()
	info, err := lock.Stat()
	if err != nil {
		return false, err
	}
	if err := checkOwner(info); err != nil {
		return false, fmt.Errorf("%s, where incomplete files are kept, is not safe: %w; remove it, or receive into another folder", WorkDir, err)
	}
	if err := lockFile(lock); err != nil {
		return false, fmt.Errorf("another verbena receive uses the folder: %w", err)
	}
	if there, err := root.Lstat(WorkDir); err != nil || !os.SameFile(info, there) {
		return true, nil
	}
	d.work, d.lock = work, lock
	return false, nil
}

// keepParts is how long incomplete files are kept.
const keepParts = 14 * 24 * time.Hour

// removeOld removes incomplete files that were not resumed within keepParts.
func (d *Dest) removeOld() error {
	list, err := d.lock.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range list {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > keepParts {
			_ = d.work.Remove(e.Name())
		}
	}
	return nil
}

// Close closes the folder. It removes WorkDir if that is empty.
func (d *Dest) Close() error {
	var err error
	if d.work != nil {
		_ = d.folder.root.Remove(WorkDir) // while it is locked; fails unless WorkDir is empty
		err = errors.Join(d.lock.Close(), d.work.Close())
	}
	return errors.Join(err, d.folder.close())
}

// State is what exists under a name.
type State int

// The states.
const (
	Absent State = iota // nothing, or something that may be replaced
	Same                // the wanted entry
	Kept                // something else, which stays (Skip)
)

// Stat reports what exists under the name of an entry, or fails with ErrExists. It also fails
// unless everything above the name is a directory.
func (d *Dest) Stat(e *proto.Entry) (state State, err error) {
	err = d.folder.in(e.Path, func(dir *os.Root, name string) (err error) {
		state, err = d.stat(e, dir, name)
		return err
	})
	return state, err
}

func (d *Dest) stat(e *proto.Entry, dir *os.Root, name string) (State, error) {
	info, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Absent, nil
	case err != nil:
		return 0, Reason(err)
	}
	switch {
	case e.Type == proto.Directory:
		if info.IsDir() {
			return Same, nil
		}
		return 0, fmt.Errorf("%w: a file exists in place of the directory", ErrExists)
	case info.IsDir():
		return 0, fmt.Errorf("%w: a directory exists in place of the file", ErrExists)
	case e.Type == proto.Symlink && info.Mode()&fs.ModeSymlink != 0:
		if target, err := dir.Readlink(name); err == nil && target == e.Target {
			return Same, nil
		}
	case e.Type == proto.File && info.Mode().IsRegular():
		if uint64(info.Size()) == e.Size && sameTime(info.ModTime(), e.Modified) {
			return Same, nil
		}
	}
	switch d.policy {
	case Skip:
		return Kept, nil
	case Overwrite:
		return Absent, nil
	}
	return 0, fmt.Errorf("%w: with another size, time or type; --existing overwrite replaces it, --existing skip leaves it", ErrExists)
}

// sameTime compares a time of the file system, which may have a resolution of seconds, with
// the time of a file that was sent.
func sameTime(have, want time.Time) bool {
	return have.Equal(want) || have.Nanosecond() == 0 && have.Unix() == want.Unix()
}

// permissions returns the permissions that a new entry gets.
func permissions(mode uint16) fs.FileMode { return fs.FileMode(mode) &^ umask() }

// MakeDir makes a directory, which the transfer completes with CompleteDir. Until then its owner
// can write to it.
func (d *Dest) MakeDir(p string, mode uint16, transfer [16]byte) error {
	d.claims.Lock()
	defer d.claims.Unlock()
	return Reason(d.folder.in(p, func(in *os.Root, name string) error {
		if err := in.Mkdir(name, fs.FileMode(mode)|0o700); err != nil { // the system applies the umask
			return err
		}
		id, err := identify(in, name)
		if err != nil {
			return err
		}
		return d.claim(p, id, transfer)
	}))
}

// ResumeDir hands an existing directory to a transfer, which completes it. With Overwrite it does
// so unless another live transfer completes the directory. Otherwise it does so only if an
// earlier transfer made the directory and is no longer live.
func (d *Dest) ResumeDir(p string, mode uint16, transfer [16]byte, live func(transfer [16]byte) bool) error {
	d.claims.Lock()
	defer d.claims.Unlock()
	return Reason(d.folder.in(p, func(in *os.Root, name string) error {
		id, err := identify(in, name)
		if err != nil {
			return err
		}
		owner, made, err := d.owner(p)
		if err == nil && made != id {
			if err = d.work.Remove(claimName(p)); err == nil {
				err = fs.ErrNotExist
			}
		}
		claimed := err == nil
		switch {
		case !claimed && !errors.Is(err, fs.ErrNotExist):
			return err
		case claimed && owner != transfer && live(owner):
			return nil
		case d.policy == Overwrite:
			if err := d.UpdateMode(p, mode|0o700); err != nil {
				return err
			}
		case !claimed || id == identity{}: // it may not be the directory that was made
			return nil
		}
		return d.claim(p, id, transfer)
	}))
}

// CompleteDir sets the time of a directory and, if mode says so, makes it read-only, after the
// last change to its contents. It does nothing unless MakeDir or ResumeDir have left this
// directory to the transfer. It adds no permissions, and the owner can always list the
// directory: a later transfer has to look into it.
func (d *Dest) CompleteDir(p string, mode uint16, modified time.Time, transfer [16]byte) error {
	d.claims.Lock()
	defer d.claims.Unlock()
	return Reason(d.folder.in(p, func(in *os.Root, name string) error {
		if info, err := in.Lstat(name); err != nil {
			return err
		} else if !info.IsDir() {
			return errNoFolder
		}
		owner, made, err := d.owner(p)
		if errors.Is(err, fs.ErrNotExist) || err == nil && owner != transfer {
			return nil
		}
		if err == nil {
			err = d.work.Remove(claimName(p))
		}
		if err != nil {
			return err
		}
		dir, err := descend(in, name)
		if err != nil {
			return err
		}
		return errors.Join(completeDir(dir, made, mode, modified), dir.Close())
	}))
}

func completeDir(dir *os.Root, made identity, mode uint16, modified time.Time) error {
	id, err := identify(dir, ".")
	if err != nil || id != made {
		return err
	}
	info, err := dir.Stat(".")
	if err != nil {
		return err
	}
	err = dir.Chtimes(".", time.Time{}, modified)
	if err == nil && mode&0o200 == 0 {
		err = dir.Chmod(".", info.Mode()&^0o200)
	}
	return err
}

// A claim is a file in the work folder that names the transfer which completes a directory, and
// the identity of the directory: after an interruption, the path may be another directory's. It
// outlives the process, so that a transfer can be resumed, and takes no memory.

// identity tells a directory from another one that has its path later: the device, the inode, and
// the time of birth, because inodes are used again. It is zero if the system reports none of them.
type identity [24]byte

func claimName(p string) string { return PartName(p) + ".dir" }

func (d *Dest) claim(p string, dir identity, transfer [16]byte) error {
	return d.work.WriteFile(claimName(p), append(transfer[:], dir[:]...), 0o600)
}

// owner returns the transfer that completes a directory, and the directory's identity. It fails
// with fs.ErrNotExist if there is no claim.
func (d *Dest) owner(p string) (transfer [16]byte, dir identity, err error) {
	b, err := d.work.ReadFile(claimName(p))
	copy(dir[:], b[copy(transfer[:], b):])
	return transfer, dir, err
}

// UpdateMode sets the permissions of an existing file or directory if the policy is Overwrite.
func (d *Dest) UpdateMode(p string, mode uint16) error {
	if d.policy != Overwrite {
		return nil
	}
	return Reason(d.folder.in(p, func(dir *os.Root, name string) error {
		info, err := dir.Lstat(name)
		if err != nil || info.Mode()&fs.ModeSymlink != 0 {
			return err
		}
		want := permissions(mode)
		if info.IsDir() { // how others share it stays
			want |= info.Mode() & (fs.ModeSetgid | fs.ModeSticky)
		}
		if info.Mode()&^fs.ModeType == want {
			return nil
		}
		return chmod(dir, name, info, want)
	}))
}

// MakeLink makes a symbolic link. Its target must have passed CheckTarget.
func (d *Dest) MakeLink(e *proto.Entry) error {
	name := PartName(e.Path) + ".link"
	_ = d.work.Remove(name)
	if err := d.work.Symlink(e.Target, name); err != nil {
		return Reason(err)
	}
	err := d.rename(name, e.Path)
	if err != nil {
		_ = d.work.Remove(name)
	}
	return err
}

// rename moves a complete entry from the work folder to its place.
func (d *Dest) rename(from, to string) error {
	err := errno.Named(d.move(from, to, d.policy == Overwrite))
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w: another program created it meanwhile", ErrExists)
	case errors.Is(err, syscall.EISDIR):
		return fmt.Errorf("%w: another program created a directory there meanwhile", ErrExists)
	case errors.Is(err, syscall.EXDEV):
		return fmt.Errorf("its folder is on another file system than %s; receive into it directly", d.dir)
	}
	return Reason(err)
}

// PartName returns the name of the file for an incomplete entry, without the extension.
func PartName(p string) string {
	h := sha256.Sum256([]byte(p))
	return hex.EncodeToString(h[:16])
}

// Part is an incomplete file.
type Part struct {
	*os.File
	dest *Dest
	name string
}

// NewPart makes an empty file for the data of p.
func (d *Dest) NewPart(p string) (*Part, error) {
	name := PartName(p) + ".part"
	f, err := d.work.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		// The old file may be anything: replace it, do not write into it.
		if err = d.work.Remove(name); err == nil {
			f, err = d.work.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		}
	}
	if err != nil {
		return nil, Reason(err)
	}
	return &Part{f, d, name}, nil
}

// OldPart opens the file that an earlier transfer of p has left, or fails with fs.ErrNotExist.
func (d *Dest) OldPart(p string) (*Part, error) {
	name := PartName(p) + ".part"
	info, err := d.work.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fs.ErrNotExist
	}
	f, err := openFile(d.work, name, os.O_RDWR, info)
	if errors.Is(err, fs.ErrPermission) { // a Commit set its permissions, and failed afterwards
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	return &Part{f, d, name}, nil
}

// Forget removes the data of an incomplete entry.
func (d *Dest) Forget(p string) { _ = d.work.Remove(PartName(p) + ".part") }

// Commit sets the permissions and the time of a complete part, closes it, and moves it to its
// place. With sync, it waits first until the data is on the disk. If it fails, the part is
// closed, and stays.
func (p *Part) Commit(e *proto.Entry, sync bool) error {
	err := p.Chmod(permissions(e.Mode))
	if err == nil && sync {
		err = p.Sync()
	}
	if err == nil {
		err = p.dest.work.Chtimes(p.name, time.Time{}, e.Modified)
	}
	if err = errors.Join(Reason(err), p.Close()); err != nil {
		return err
	}
	return p.dest.rename(p.name, e.Path)
}

// FreeBytes is how many bytes the disk has left for this user, or -1 if the system does not
// report it.
func (d *Dest) FreeBytes() int64 {
	f, err := d.folder.root.Open(".")
	if err != nil {
		return -1
	}
	defer f.Close()
	return freeBytes(f)
}

// CodeOf returns the code of an error of this package or of the operating system.
func CodeOf(err error) proto.Code {
	err = errno.Named(err)
	switch {
	case err == nil:
		return proto.OK
	case errors.Is(err, ErrExists), errors.Is(err, fs.ErrExist):
		return proto.Exists
	case errors.Is(err, ErrPath):
		return proto.UnsafePath
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.Errno(errQuota)):
		return proto.NoSpace
	case errors.Is(err, syscall.EFBIG):
		return proto.TooBig
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return proto.NoPermission
	}
	return proto.Failed
}

// Reason removes the path from an error of the operating system: the path of an incomplete
// file means nothing to the sender.
func Reason(err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return pe.Err
	}
	if le := (*os.LinkError)(nil); errors.As(err, &le) {
		return le.Err
	}
	return err
}
