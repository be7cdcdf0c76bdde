package samples

import "testing"

// Two hosts count alternately, and eight writers of one on the event of the other.
func TestCountOnTwoHosts(t *testing.T) {
	h := newHosts(t, 1500)
	a, b := counter{h.on(0), "soft-" + cable}, counter{h.on(1), "soft-" + cable}
	count(t, a, b, fully(100_000), "-n", fully(100_000))
	count(t, a, b, fully(100_000), "-n", fully(100_000), "-writers", "8")
}
