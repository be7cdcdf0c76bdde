package samples

import (
	"testing"

	"github.com/verbena-rdma/verbena/test/soak"
)

// Two hosts count alternately, and eight writers of one on the event of the other.
func TestSoakCountOnTwoHosts(t *testing.T) {
	h := newHosts(t, 1500)
	a, b := counter{h.on(0), "soft-" + cable}, counter{h.on(1), "soft-" + cable}
	n := soak.Rounds(t, 4000, 100_000)
	countInTurns(t, a, b, n/2)
	countTogether(t, a, b, n, 0)
}
