//go:build !linux

package rules

import "github.com/verbena-rdma/verbena/verbs"

// CheckMapped accepts all memory: this system does not say what is mapped.
func CheckMapped([]byte, verbs.Access) error { return nil }
