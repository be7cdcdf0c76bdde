package bufinv

import "github.com/verbena-rdma/verbena/internal/sibling"

// siblings has the methods that other packages of this module use.
type siblings struct{ *Buf }

// Siblings returns the methods for packages of this module.
func (b *Buf) Siblings(sibling.Pass) siblings { return siblings{b} }
