package dialling

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// A dial that is made once tries every address of its host once, in order, unless one rejects
// it.
func TestAttemptsOnce(t *testing.T) {
	silent := &verbs.CMError{Reason: verbs.CMRejectTimeout, Err: verbs.ErrUnreachable}
	closed := &verbs.CMError{Reason: verbs.CMRejectInvalidServiceID, Err: verbs.ErrNotListening}
	rejected := &verbs.CMError{Reason: verbs.CMRejectConsumer, Err: verbs.ErrRejected}
	noRoute := &verbs.CMError{Err: verbs.ErrNoRoute}
	for _, c := range []struct {
		name     string
		outcomes []error // of the addresses in turn
		attempts int
		want     error
	}{
		{"none listens", []error{closed, closed, closed}, 3, verbs.ErrNotListening},
		{"the first has no route", []error{noRoute, closed, silent}, 3, verbs.ErrUnreachable},
		{"none has a route", []error{noRoute, noRoute, noRoute}, 3, verbs.ErrNoRoute},
		{"the last has no route", []error{silent, closed, noRoute}, 3, verbs.ErrNotListening},
		{"the second rejects it", []error{closed, rejected, closed}, 2, verbs.ErrRejected},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := Attempts{once: true}
			var list []netip.Addr
			for i := range c.outcomes {
				list = append(list, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
			}
			a.Add(list, func(netip.Addr) bool { return true })
			n := 0
			for again := true; again; n++ {
				require.Equal(t, list[n], a.Next())
				err := c.outcomes[n]
				if again = a.Failed(err, Retryable(err)); again {
					require.True(t, a.Now(), "no wait")
				}
			}
			require.Equal(t, c.attempts, n)
			require.ErrorIs(t, a.Last, c.want)
		})
	}
}
