package syncevent

import "github.com/verbena-rdma/verbena/internal/friend"

// forFriends has the methods that other packages of this module use.
type forFriends struct{ *Event }

// Friends returns the methods for packages of this module.
func (e *Event) Friends(friend.Package) forFriends { return forFriends{e} }
