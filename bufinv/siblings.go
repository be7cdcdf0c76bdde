package bufinv

import "github.com/verbena-rdma/verbena/internal/sibling"

// siblings is what other packages of this module do with a Buf.
type siblings struct{ *Buf }

// Siblings is for packages of this module.
func (b *Buf) Siblings(sibling.Pass) siblings { return siblings{b} }
