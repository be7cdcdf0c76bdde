package syncevent

import "github.com/verbena-rdma/verbena/internal/sibling"

// siblings is what other packages of this module do with an Event.
type siblings struct{ *Event }

// Siblings is for packages of this module.
func (e *Event) Siblings(sibling.Pass) siblings { return siblings{e} }
