package bufinv

import "github.com/verbena-rdma/verbena/internal/friend"

// forFriends has the methods that other packages of this module use.
type forFriends struct{ *Buf }

// Friends returns the methods for packages of this module.
func (b *Buf) Friends(friend.Package) forFriends { return forFriends{b} }

// Versions of buffers that have no version of their own.
const (
	noVersion   = 0 // a list of several elements, or a Buf that cannot be used
	nilVersion  = 1
	usedVersion = 2 // added to the count of changes
)

// Version identifies the place and the data of a Buf that is alone in its list. As long as the
// caller holds a reference, an equal version that is not 0 means that nothing has changed, and that
// its Map is registered as before. A nil Buf has a version too. Others, lists included, have 0.
func (s forFriends) Version() uint64 {
	b := s.Buf
	switch {
	case b == nil:
		return nilVersion
	case b.next != nil || b.refs.Load() <= 0:
		return noVersion
	}
	return usedVersion + b.version
}

// ListEmptiedRoom is the ListRoom that there would be after Empty.
func (s forFriends) ListEmptiedRoom() int {
	n := 0
	for e := s.elements(); e != nil; e = e.next {
		n = addSizes(n, e.size-e.dataOff)
	}
	return n
}
