package syncevent

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// A peer's write and addition wake those who sleep, on a device that reports
// them and on one that does not.
func TestWokenByPeer(t *testing.T) {
	for name, polled := range map[string]bool{"reported": false, "polled": true} {
		t.Run(name, func(t *testing.T) {
			a, b := newPeers(t)
			var dev verbs.Device = b.dev
			if polled {
				dev = newAdapter(b.dev)
			}
			e := open(t, dev, Config{Publishers: PublishRemote})
			assert.Equal(t, polled, e.needsPolling)
			r := imported(t, a, e)
			ctx := patience(t)
			var wg sync.WaitGroup
			for i := range uint64(100) {
				wg.Go(func() {
					v, err := e.sleep(ctx, Equal(2*i+1))
					assert.NoError(t, err)
					assert.Equal(t, 2*i+1, v)
				})
				a.write(r, 2*i+1)
				wg.Wait()
				wg.Go(func() {
					v, err := e.Wait(ctx, Greater(2*i+1))
					assert.NoError(t, err)
					assert.Equal(t, 2*i+2, v)
				})
				assert.Equal(t, 2*i+1, a.add(r, 1))
				wg.Wait()
			}
		})
	}
}

// Additions of the program and of a peer do not get lost in each other.
func TestBothAdd(t *testing.T) {
	a, b := newPeers(t)
	e := open(t, b.dev, Config{Publishers: bothPublish})
	r := imported(t, a, e)
	const each = 500
	ctx := patience(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range each {
			a.add(r, 1)
		}
	})
	wg.Go(func() {
		for range each {
			_, err := e.Add(1)
			assert.NoError(t, err)
		}
	})
	v, err := e.Wait(ctx, Greater(2*each-1))
	require.NoError(t, err)
	assert.Equal(t, uint64(2*each), v)
	wg.Wait()
}
