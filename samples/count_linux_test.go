package samples

import "testing"

// Two hosts count in turns, and eight writers of one on the event of the other.
func TestCountOnTwoHosts(t *testing.T) {
	h := newHosts(t, 1500)
	device := []string{"-d", "soft-" + cable}
	count(t, h.on(0), h.on(1), fully(100_000), append(device, "-n", fully(100_000))...)
	count(t, h.on(0), h.on(1), fully(100_000), append(device, "-n", fully(100_000), "-writers", "8")...)
}
