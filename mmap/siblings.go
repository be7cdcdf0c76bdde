package mmap

import "github.com/verbena-rdma/verbena/internal/sibling"

// siblings is what other packages of this module do with a Map.
type siblings struct{ *Map }

// Siblings is for packages of this module.
func (m *Map) Siblings(sibling.Pass) siblings { return siblings{m} }
