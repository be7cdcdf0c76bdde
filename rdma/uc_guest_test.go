//go:build linux && cgo && verbs

package rdma_test

import "testing"

// Connections of UC, on the kernel's device and on the software device.
func TestGuestUnreliableConnection(t *testing.T) {
	requireGuest(t)
	for _, couple := range devicePairs {
		t.Run(couple.name, func(t *testing.T) { testUnreliableConnection(t, couple.a(t), couple.b(t)) })
	}
}
