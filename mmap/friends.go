package mmap

import "github.com/verbena-rdma/verbena/internal/friend"

// forFriends has the methods that other packages of this module use.
type forFriends struct{ *Map }

// Friends returns the methods for packages of this module.
func (m *Map) Friends(friend.Package) forFriends { return forFriends{m} }
