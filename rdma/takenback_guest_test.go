//go:build linux && cgo && verbs

package rdma_test

import (
	"testing"

	"github.com/verbena-rdma/verbena/test/soak"
)

// So it is where one end, or both, are the kernel's.
func TestGuestSoakMemoryTakenBack(t *testing.T) {
	requireGuest(t)
	rounds := soak.Rounds(t, 2, 200)
	for _, on := range devicePairs[:3] {
		t.Run(on.name, func(t *testing.T) { testTakenBack(t, on.a(t), on.b(t), rounds) })
	}
}
