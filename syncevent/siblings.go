package syncevent

import "github.com/verbena-rdma/verbena/internal/sibling"

// siblings has the methods that other packages of this module use.
type siblings struct{ *Event }

// Siblings returns the methods for packages of this module.
func (e *Event) Siblings(sibling.Pass) siblings { return siblings{e} }
