package cm

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/verbs"
)

// sourceOf is the port that an end's queue pair is to take packets from.
func sourceOf(t *testing.T, c *Conn) uint16 {
	t.Helper()
	attr, _, err := c.QPAttr(verbs.QPReadyToReceive)
	require.NoError(t, err)
	return attr.Address.SourceUDPPort
}

// Each end knows the port that the other sends from, if the other announces and uses it.
func TestSourcePort(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		a, b         uint16
		lies         bool // a says another port than it has
		wantA, wantB uint16
	}{
		"both say it":         {61001, 61002, false, 61002, 61001},
		"one is foreign":      {61001, 0, false, 0, 61001},
		"the other is":        {0, 61002, false, 61002, 0},
		"one names another's": {61001, 61002, true, 61002, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w, a, b := pair(t, faults{})
			a.source, b.source, a.foreign = c.a, c.b, c.lies
			a.answerAll()
			b.answerAll()
			b.listen(ListenParams{Service: testService})
			active := a.connect(a.params(b))
			w.Pass(time.Millisecond)
			passive := b.all[0].Conn
			require.Equal(t, StateEstablished, passive.State())
			assert.Equal(t, []uint16{c.wantA, c.wantB}, []uint16{sourceOf(t, active), sourceOf(t, passive)})
		})
	}
}

// Messages with correct numbers but from another port than the peer's have no effect. Only the
// answer to a first request may come from another device at the peer's address.
func TestSourcePortIsHeld(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, faults{})
	a.source, b.source = 61001, 61002
	a.answerAll()
	b.answerAll()
	b.listen(ListenParams{Service: testService})
	a.connect(a.params(b))
	w.Pass(time.Millisecond)
	passive := b.all[0].Conn
	elsewhere := b.pathTo(a)
	elsewhere.Remote = netip.AddrPortFrom(a.address.Addr(), 61003)
	tid, local, remote := passive.transactionID, passive.remoteID, passive.localID
	for i, m := range []encoder{
		&mad.DREQ{TransactionID: 1, LocalCommID: local, RemoteCommID: remote, RemoteQPN: passive.localQPN},
		&mad.REJ{TransactionID: tid, LocalCommID: local, RemoteCommID: remote, Reason: verbs.CMRejectTimeout},
		&mad.RTU{TransactionID: tid, LocalCommID: local, RemoteCommID: remote},
		&mad.MRA{TransactionID: tid, LocalCommID: local, RemoteCommID: remote},
	} {
		var buf [mad.Len]byte
		require.NoError(t, m.Encode(&buf))
		assert.False(t, b.NamesConnection(buf[:], &elsewhere))
		assert.False(t, b.Receive(buf[:], elsewhere, w.Now))
		b.settle()
		require.Equal(t, StateEstablished, passive.State(), "%T", m)
		require.Equal(t, uint64(i+1), b.Counters().WrongPeer)
	}

	// The peer's device has come back, and does not know the connection.
	a.dead = true
	require.NoError(t, passive.Disconnect(DisconnectParams{}, w.Now))
	b.settle()
	var buf [mad.Len]byte
	require.NoError(t, (&mad.DREP{TransactionID: passive.transactionIDClose, LocalCommID: local, RemoteCommID: remote}).Encode(&buf))
	assert.True(t, b.Receive(buf[:], elsewhere, w.Now))
	b.settle()
	assert.Equal(t, StateTimeWait, passive.State())
}
