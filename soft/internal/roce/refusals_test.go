package roce

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// A host has its tries, then one a second, and does not take those of others. One that was
// refused more often waits longer, up to a bound.
func TestTriesOfAHost(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	d := &Device{base: time.Now().Add(-time.Hour), log: zerolog.New(&log)}
	r := newRefusals(d)
	liar, friend := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for r.hosts.of(liar) == r.hosts.of(friend) {
		r = newRefusals(d)
	}
	for range refusalBurst {
		require.True(t, r.admits(liar))
		r.refused(liar)
	}
	require.False(t, r.admits(liar))
	require.True(t, r.admits(friend))
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")))
	require.Contains(t, log.String(), "192.0.2.1")

	d.base = d.base.Add(-refusalInterval)
	require.True(t, r.admits(liar))
	r.refused(liar)
	require.False(t, r.admits(liar))

	d.base = d.base.Add(-refusalBurst * refusalInterval)
	for range refusalBurst {
		require.True(t, r.admits(liar))
		r.refused(liar)
	}
	require.False(t, r.admits(liar))
	require.Equal(t, 2, bytes.Count(log.Bytes(), []byte("\n")), "not more often than every %v", logInterval)
}

// Whoever connects anew for each guess is held up like whoever does not; a connection that
// was granted a key goes on with it.
func TestGuessesOfOneHost(t *testing.T) {
	everyWay(t, 4096, func(t *testing.T, x, y *side) {
		write := func(from, to *side, rkey uint32) {
			from.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{from.sge(0, 8)}, RemoteAddr: to.mr.Addr(), RKey: rkey})
		}
		right := y.mr.RKey()
		write(x, y, right)
		require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)

		liar, victim := x.another(), y.another()
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
		assert.GreaterOrEqual(t, tries, uint64(refusalBurst))
		assert.LessOrEqual(t, counter(t, y.dev, "resp_remote_access_errors"), tries)

		write(x, y, right)
		require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status, "a connection that has been granted the key")
	})
}

// another is a side with a queue pair of its own on the same device, with the same memory.
func (s *side) another() *side {
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
