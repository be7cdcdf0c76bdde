package roce

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/verbs"
)

// A host that reconnects for each guess is limited too. A connection that was granted a key
// continues to use it.
func TestGuessesOfOneHost(t *testing.T) {
	overEachPath(t, 4096, func(t *testing.T, x, y *side) {
		write := func(from, to *side, rkey uint32) {
			from.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{from.sge(0, 8)}, RemoteAddr: to.mr.Addr(), RKey: rkey})
		}
		right := y.mr.RKey()
		write(x, y, right)
		require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)

		liar, victim := x.anotherQueuePair(), y.anotherQueuePair()
		limited := func() bool { return counter(t, y.dev, "rx_accesses_limited") > 0 }
		guess := func(rkey uint32) []verbs.WC {
			for _, s := range []*side{liar, victim} {
				require.NoError(t, s.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState))
			}
			liar.connect(victim)
			victim.connect(liar)
			write(liar, victim, rkey)
			var done []verbs.WC
			require.Eventually(t, func() bool {
				n, err := liar.cq.Poll(liar.wcs)
				require.NoError(t, err)
				done = liar.wcs[:n]
				return n > 0 || limited()
			}, 5*time.Minute, 10*time.Microsecond)
			return done
		}
		tries := uint64(0)
		for ; !limited(); tries++ {
			if done := guess(right + 1 + uint32(tries)); len(done) > 0 {
				require.Equal(t, verbs.StatusRemoteAccessError, done[0].Status)
			}
		}
		assert.GreaterOrEqual(t, tries, uint64(admission.KeyBurst))
		assert.LessOrEqual(t, counter(t, y.dev, "resp_remote_access_errors"), tries)

		write(x, y, right)
		require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status, "a connection that has been granted the key")
	})
}

// anotherQueuePair returns a side with another queue pair on the same device and the same
// memory.
func (s *side) anotherQueuePair() *side {
	other := *s
	other.wcs = make([]verbs.WC, 64)
	var err error
	other.cq, err = s.dev.CreateCQ(verbs.CQInit{Capacity: 64})
	require.NoError(s.t, err)
	other.qp, err = s.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: other.cq, RecvCQ: other.cq, MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 4, MaxRecvSGE: 4})
	require.NoError(s.t, err)
	s.t.Cleanup(func() {
		require.NoError(s.t, other.qp.Close())
		require.NoError(s.t, other.cq.Close())
	})
	return &other
}
