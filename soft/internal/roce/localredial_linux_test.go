package roce

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/optional"
	"github.com/verbena-rdma/verbena/verbs"
)

// A device that is stopped when it is dialled is dialled again.
func TestStoppedPeerIsDialledAgain(t *testing.T) {
	x, y := openSide(t, Config{}, 4096), openSide(t, Config{}, 4096)
	gids, err := y.dev.GIDs(1)
	require.NoError(t, err)
	y.dev.mu.Lock()
	x.connectTo(gids[0], y.qp.Num())
	require.Eventually(t, func() bool {
		x.dev.mu.Lock()
		defer x.dev.mu.Unlock()
		for _, p := range x.dev.main.mu.local.All() {
			return !p.Dialled()
		}
		return false
	}, 5*time.Minute, time.Millisecond)
	require.Equal(t, verbs.PathNetwork, x.qp.(optional.CountersQP).Counters().Path)
	y.dev.mu.Unlock()
	awaitSharedMemory(x)
}
