//go:build linux && cgo && verbs

package rdma_test

import "testing"

// Contexts that dial and listen through the kernel's connection manager, at either end
// or both.
func TestGuestDial(t *testing.T) {
	requireGuest(t)
	for _, c := range couples[:3] {
		for name, test := range map[string]func(*testing.T, *callers){
			"dial": testDial, "rejected": testDialIsRejected, "requests wait": testRequestsWait,
		} {
			t.Run(c.name+", "+name, func(t *testing.T) { test(t, newCallers(t, c.a(t), c.b(t))) })
		}
	}
}
