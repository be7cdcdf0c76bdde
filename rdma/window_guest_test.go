//go:build linux && cgo && verbs

package rdma_test

import "testing"

func TestGuestWindows(t *testing.T) {
	requireGuest(t)
	for _, on := range devicePairs {
		t.Run(on.name, func(t *testing.T) {
			onA, onB := on.a(t), on.b(t)
			t.Run("taken back", func(t *testing.T) { testWindow(t, onA, onB) })
			// rxe of Linux 6.1 does not say which key a send has invalidated.
			t.Run("given back", func(t *testing.T) { testWindowGivenBack(t, onA, onB, onB.Driver() == "soft") })
		})
	}
}
