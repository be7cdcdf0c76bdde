//go:build linux

package sysfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// owner is the process that made a tree.
type owner struct {
	pid       int
	started   uint64 // in ticks since the system started
	namespace uint64 // of its PID
}

func self() owner {
	o := owner{pid: os.Getpid()}
	o.started, _ = started(o.pid)
	link, _ := os.Readlink("/proc/self/ns/pid")
	_, _ = fmt.Sscanf(link, "pid:[%d]", &o.namespace) // zero without /proc: then no tree is stale
	return o
}

// started returns when a process was started (proc(5), field 22 of stat).
func started(pid int) (ticks uint64, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, after, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" ")) // from field 3
	fields := bytes.Fields(after)
	if len(fields) < 20 {
		return 0, errors.ErrUnsupported
	}
	_, err = fmt.Sscan(string(fields[19]), &ticks)
	return ticks, err
}

// isGone reports whether the process has ended. Of one in another PID namespace that is not known.
func (o owner) isGone(self owner) bool {
	if o.namespace == 0 || o.namespace != self.namespace {
		return false
	}
	ticks, err := started(o.pid)
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || err == nil && ticks != o.started
}

// removeStale removes the trees of processes that have ended without removing them.
func removeStale(folder string, self owner) {
	paths, _ := filepath.Glob(filepath.Join(folder, prefix+"*"))
	for _, path := range paths {
		var o owner
		if _, err := fmt.Sscanf(filepath.Base(path), prefix+"%d-%d-%d-", &o.pid, &o.started, &o.namespace); err == nil && o.isGone(self) {
			_ = remove(path)
		}
	}
}

// Remove removes the tree.
func (t *Tree) Remove() error { return remove(t.path) }

// remove removes a tree: what Make makes in a folder of this user, and nothing else. It
// follows no symbolic links.
func remove(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode().Perm() != 0o700 || int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return fmt.Errorf("remove %s: it is not a private folder of this user: %w", path, os.ErrPermission)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer root.Close()
	if opened, err := root.Stat("."); err != nil || !os.SameFile(info, opened) {
		return fmt.Errorf("remove %s: it was replaced meanwhile: %w", path, errors.Join(err, os.ErrPermission))
	}
	if err := errors.Join(root.RemoveAll("class"), root.RemoveAll("devices")); err != nil {
		return err
	}
	return os.Remove(path)
}
