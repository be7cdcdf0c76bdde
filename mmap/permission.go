package mmap

import (
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/verbs"
)

// Permission is a set of rights to the memory of a Map, combined with |. The rights are those
// of devices, for the tasks of this program (local) and of its peers (remote). Local reads are
// always allowed. The program itself can always read and write Bytes.
type Permission uint32

// The permissions. LocalReadOnly is enough for the source of a send, a write or a copy. Memory
// that a task of this program writes (a receive, a read, the result of an atomic, the
// destination of a copy) needs LocalReadWrite. RemoteWrite and RemoteAtomic need
// LocalReadWrite too (IBTA 10.6.3.1). RelaxedOrdering lets the device write the bytes of a
// message in any order; devices without it ignore it.
const (
	LocalReadOnly   Permission = 0
	LocalReadWrite  Permission = 1 << 0
	RemoteRead      Permission = 1 << 1
	RemoteWrite     Permission = 1 << 2
	RemoteAtomic    Permission = 1 << 3
	RelaxedOrdering Permission = 1 << 4
	// BindWindows lets memory windows be bound to the Map (rdma.Window), which lend parts of
	// it to peers. Without remote permissions, peers reach the Map through windows only.
	BindWindows Permission = 1 << 5
)

// remoteRights are the rights that a peer can have. Their values are part of the descriptor
// format.
const remoteRights = RemoteRead | RemoteWrite | RemoteAtomic

var permissionNames = [...]string{"LocalReadWrite", "RemoteRead", "RemoteWrite", "RemoteAtomic", "RelaxedOrdering", "BindWindows"}

// Has reports whether the set holds all of q.
func (p Permission) Has(q Permission) bool { return p&q == q }

// String names the permissions, joined with |.
func (p Permission) String() string {
	if p == LocalReadOnly {
		return "LocalReadOnly"
	}
	var names []string
	for i, name := range permissionNames {
		if bit := Permission(1) << i; p.Has(bit) {
			names = append(names, name)
			p &^= bit
		}
	}
	if p != 0 {
		names = append(names, fmt.Sprintf("%#x", uint32(p)))
	}
	return strings.Join(names, "|")
}

func (p Permission) validate() error {
	if unknown := p &^ (LocalReadWrite | remoteRights | RelaxedOrdering | BindWindows); unknown != 0 {
		return fmt.Errorf("%w: permissions %v have unknown bits", ErrInvalid, p)
	}
	if p&(RemoteWrite|RemoteAtomic) != 0 && !p.Has(LocalReadWrite) {
		return fmt.Errorf("%w: RemoteWrite and RemoteAtomic require LocalReadWrite too; the permissions are %v", ErrPermission, p)
	}
	return nil
}

func (p Permission) access() verbs.Access {
	var a verbs.Access
	for _, right := range [...]struct {
		p Permission
		a verbs.Access
	}{
		{LocalReadWrite, verbs.AccessLocalWrite},
		{RemoteRead, verbs.AccessRemoteRead},
		{RemoteWrite, verbs.AccessRemoteWrite},
		{RemoteAtomic, verbs.AccessRemoteAtomic},
		{RelaxedOrdering, verbs.AccessRelaxedOrdering},
		{BindWindows, verbs.AccessMWBind},
	} {
		if p.Has(right.p) {
			a |= right.a
		}
	}
	return a
}
