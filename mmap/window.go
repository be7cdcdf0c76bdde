package mmap

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// WindowMR returns the region for a memory window in the protection domain pd over n bytes
// from offset off to peers with permissions perm, if the Map allows that. It is for package
// rdma, whose Window holds the Map meanwhile.
//
// Errors match ErrRange for bytes outside the Map. They match ErrPermission where perm is not
// one or several of RemoteRead, RemoteWrite and RemoteAtomic, or where the Map lacks
// BindWindows, or LocalReadWrite for a window that peers can write to. Others are those of
// LKey.
func (s forFriends) WindowMR(pd verbs.PD, off, n int, perm Permission) (verbs.MR, error) {
	m := s.Map
	switch {
	case m.remote:
		return nil, fmt.Errorf("bind window to memory map: it %w; only its owner can bind windows", ErrRemote)
	case off < 0 || n < 1 || off > m.size || n > m.size-off:
		return nil, fmt.Errorf("bind window to memory map: %w: %d bytes from offset %d, of %d", ErrRange, n, off, m.size)
	case perm == 0 || perm&^remoteRights != 0:
		return nil, fmt.Errorf("bind window to memory map: %w: the permissions are %v; give one or more of RemoteRead, RemoteWrite and RemoteAtomic", ErrPermission, perm)
	case !m.perm.Has(BindWindows):
		return nil, fmt.Errorf("bind window to memory map: %w: the map has %v; make it with BindWindows", ErrPermission, m.perm)
	case perm&(RemoteWrite|RemoteAtomic) != 0 && !m.perm.Has(LocalReadWrite):
		return nil, fmt.Errorf("bind window to memory map: %w: %v requires LocalReadWrite, and the map has %v; make it with LocalReadWrite too", ErrPermission, perm, m.perm)
	}
	for _, r := range m.registrations() {
		if r.pd == pd {
			return r.mr, nil
		}
	}
	if m.closed.Load() {
		return nil, errKeyClosed
	}
	return nil, errKeyNone
}

// ExportWindow returns a descriptor, as Export does, of a memory window over n bytes from
// offset off, which has a remote key of its own. It is for package rdma.
func (s forFriends) ExportWindow(off, n int, rkey uint32, perm Permission) ([]byte, error) {
	m := s.Map
	b, err := encode(fields{m.addr + uint64(off), uint64(n), rkey, perm})
	if err != nil {
		return nil, fmt.Errorf("export window of memory map: %w", err)
	}
	return b, nil
}
