package preload

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// privileges are what decides whether the kernel starts a program in secure mode, in which the
// dynamic linker ignores LD_PRELOAD (ld.so(8), AT_SECURE in getauxval(3)).
type privileges struct {
	mode             uint32 // of the file, as in stat(2)
	owner, group     uint32
	capabilities     bool // the file has some
	nosuid           bool // its file system is mounted so
	noNewPrivileges  bool // prctl(2), as in containers without allowPrivilegeEscalation
	user, usersGroup uint32
}

// why says why a program starts in secure mode, or is empty. A program that gains nothing does not.
func (p *privileges) why() string {
	switch {
	case p.nosuid:
		return ""
	case p.mode&unix.S_ISUID != 0 && p.owner != p.user && !p.noNewPrivileges:
		return "is set-user-ID"
	case p.mode&unix.S_ISGID != 0 && p.mode&unix.S_IXGRP != 0 && p.group != p.usersGroup && !p.noNewPrivileges:
		return "is set-group-ID"
	case p.capabilities && p.user != 0:
		return "has file capabilities"
	}
	return ""
}

func privileged(path string) (why string, err error) {
	var file unix.Stat_t
	if err := unix.Stat(path, &file); err != nil {
		return "", fmt.Errorf("stat: %w", err)
	}
	var system unix.Statfs_t
	if err := unix.Statfs(path, &system); err != nil {
		return "", fmt.Errorf("statfs: %w", err)
	}
	_, err = unix.Getxattr(path, "security.capability", nil)
	if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) {
		return "", fmt.Errorf("read its capabilities: %w", err)
	}
	noNew, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) // Linux 3.5
	p := &privileges{
		mode: file.Mode, owner: file.Uid, group: file.Gid, capabilities: err == nil,
		nosuid: system.Flags&unix.MS_NOSUID != 0, noNewPrivileges: noNew == 1, // ST_NOSUID has the same value
		user: uint32(os.Getuid()), usersGroup: uint32(os.Getgid()),
	}
	return p.why(), nil
}
