package mmap

import "github.com/verbena-rdma/verbena/internal/sibling"

// siblings has the methods that other packages of this module use.
type siblings struct{ *Map }

// Siblings returns the methods for packages of this module.
func (m *Map) Siblings(sibling.Pass) siblings { return siblings{m} }
