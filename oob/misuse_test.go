package oob_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// newPeer makes a Peer beside that of a program.
func newPeer(t *testing.T, way oob.Way, cfg oob.Config) *oob.Peer {
	t.Helper()
	cfg.Notify = func(string) {}
	p, err := oob.New(way, cfg)
	require.NoError(t, err)
	return p
}

// An exchange that fails leaves no connection: on a context that runs, the next one finds
// room.
func TestFailedExchangeLeavesNoConnection(t *testing.T) {
	fails := errors.New("on purpose")
	way := &fakeWay{exchange: func(context.Context, oob.Ends, []byte) ([]byte, error) { return nil, fails }}
	p := newProgram(t, way, writer(nil), rdma.Config{MaxConnections: 2})
	tries := 0
	var peers []*oob.Peer
	try := func() {
		peer := newPeer(t, way, writer(nil))
		peers = append(peers, peer)
		peer.Exchange(t.Context(), p.rdma, oob.Offer{Connections: 2}, func(_ *oob.Answer, err error) {
			assert.ErrorIs(t, err, fails)
			if !assert.Empty(t, p.rdma.Connections()) {
				p.rdma.Stop()
			}
		})
	}
	closed := 0
	p.rdma.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, _ error) {
		assert.Equal(t, rdma.Closed, state)
		if closed++; closed%2 != 0 {
			return
		}
		if tries++; tries == 3 {
			p.rdma.Stop()
		} else {
			try()
		}
	})
	p.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			try()
		}
	})
	require.NoError(t, p.run(forever(t)))
	for _, peer := range peers {
		require.NoError(t, peer.Close(nil))
	}
}
