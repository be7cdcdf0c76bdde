package rdma_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

// A connection by address uses the smaller of its ends' path MTUs, also where the listener's
// is the smaller one and the dial is not to be repeated.
func TestDialMTU(t *testing.T) {
	for _, c := range []struct{ client, server, want verbs.MTU }{
		{0, 0, 4096}, {1024, 0, 1024}, {0, 512, 512}, {2048, 1024, 1024}, {256, 2048, 256},
	} {
		t.Run(fmt.Sprintf("%d to %d", c.client, c.server), func(t *testing.T) {
			cs := newDialRig(t)
			server, client := cs.add(rdma.Config{Path: rdma.PathConfig{MTU: c.server}}), cs.add(rdma.Config{Path: rdma.PathConfig{MTU: c.client}})
			cs.start(server, client)
			requests := 0
			var accepted *rdma.Connection
			_, addr := cs.listen(server, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
				requests++
				accepted = must(q.Accept(rdma.AcceptConfig{}))
			}})
			conn, err := client.Dial(addr, rdma.DialConfig{Once: true})
			require.NoError(t, err)
			cs.until("an end", func() bool {
				return conn.State() == rdma.Failed || conn.State() == rdma.Ready && accepted.State() == rdma.Ready
			})
			require.NoError(t, conn.Err())
			assert.Equal(t, c.want, conn.MTU())
			assert.Equal(t, c.want, accepted.MTU())
			assert.Equal(t, 1, requests)
			for _, end := range []*rdma.Connection{conn, accepted} {
				attr, err := end.QP().Query()
				require.NoError(t, err)
				assert.Equal(t, c.want, attr.PathMTU)
			}
		})
	}
}

// The kernel's connection manager takes the path MTU from the network interface. Where that is
// more than Config.Path.MTU, there is no connection, and the error says what to do instead.
func TestDialMTUOfTheInterface(t *testing.T) {
	for name, limits := range map[string][2]verbs.MTU{"dial": {1024, 0}, "accept": {0, 1024}} {
		t.Run(name, func(t *testing.T) {
			a, b := must(faultydevice.Open(soft.Config{})), must(faultydevice.Open(soft.Config{}))
			a.KernelCM()
			b.KernelCM()
			cs := newDialRig(t, closed(t, a), closed(t, b))
			client, server := cs.add(rdma.Config{Path: rdma.PathConfig{MTU: limits[0]}}), cs.add(rdma.Config{Path: rdma.PathConfig{MTU: limits[1]}})
			cs.start(server, client)
			refused := error(nil)
			_, addr := cs.listen(server, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
				if _, refused = q.Accept(rdma.AcceptConfig{}); refused != nil {
					require.NoError(t, q.Reject(nil))
				}
			}})
			conn, err := client.Dial(addr, rdma.DialConfig{})
			require.NoError(t, err)
			cs.until("an end", func() bool { return conn.State() == rdma.Failed || conn.State() == rdma.Ready })
			if err = refused; limits[0] != 0 {
				err = conn.Err()
			}
			require.ErrorIs(t, err, rdma.ErrRange)
			assert.NotErrorIs(t, err, rdma.ErrDevice)
			assert.ErrorContains(t, err, "a path MTU of 4096")
			assert.ErrorContains(t, err, "lower the MTU of")
			assert.Equal(t, rdma.Failed, conn.State())
		})
	}
}
