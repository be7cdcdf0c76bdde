//go:build linux && cgo && verbs

package rdma_test

import "testing"

// Contexts that dial and listen through the kernel's connection manager, at either end
// or both.
func TestGuestDial(t *testing.T) {
	requireGuest(t)
	for _, c := range devicePairs[:3] {
		for name, test := range map[string]func(*testing.T, *dialRig){
			"dial": testDial, "rejected": testDialIsRejected, "requests wait": testRequestsWait,
		} {
			t.Run(c.name+", "+name, func(t *testing.T) { test(t, newDialRig(t, c.a(t), c.b(t))) })
		}
	}
}
