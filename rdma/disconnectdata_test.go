package rdma_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
)

// The private data of a disconnect arrives before the connection is reported Closed, however this end
// closes it, and data that is too long is cut.
func TestDisconnectData(t *testing.T) {
	for name, test := range map[string]struct {
		data []byte
		end  func(c *dialContext, conn *rdma.Connection) error
		want []byte
	}{
		"close":    {[]byte("done"), func(_ *dialContext, conn *rdma.Connection) error { return conn.Close() }, []byte("done")},
		"stop":     {[]byte("done"), func(c *dialContext, _ *rdma.Connection) error { return c.Stop() }, []byte("done")},
		"fail":     {[]byte("why"), func(c *dialContext, _ *rdma.Connection) error { c.Fail(errors.New("x")); return nil }, []byte("why")},
		"nothing":  {nil, func(_ *dialContext, conn *rdma.Connection) error { return conn.Close() }, nil},
		"too much": {bytes.Repeat([]byte{1}, 300), func(_ *dialContext, conn *rdma.Connection) error { return conn.Close() }, bytes.Repeat([]byte{1}, 220)},
	} {
		runSimulated(t, name, 2, func(t *testing.T, s *sim.Sim) {
			cs := newSimDialRig(s)
			server, client := cs.add(rdma.Config{}), cs.add(rdma.Config{})
			cs.start(server, client)
			_, addr := cs.listen(server, rdma.ListenConfig{})
			var sent *rdma.Connection
			conn, err := client.Dial(addr, rdma.DialConfig{DisconnectData: func(conn *rdma.Connection) []byte { sent = conn; return test.data }})
			require.NoError(t, err)
			cs.until("both are Ready", func() bool { return len(server.ready) == 1 && conn.State() == rdma.Ready })
			accepted := server.ready[0]
			require.Nil(t, accepted.DisconnectData())
			seen := false
			server.WatchConnections(func(c *rdma.Connection, state rdma.ConnectionState, _ error) {
				if state == rdma.Closed {
					seen = true
					assert.Equal(t, append(bytes.Clone(test.want), make([]byte, 220-len(test.want))...), c.DisconnectData())
				}
			})
			require.NoError(t, test.end(client, conn))
			cs.until("both are Closed", func() bool { return seen && client.closed == 1 })
			assert.Same(t, conn, sent)
			assert.Nil(t, conn.DisconnectData(), "an answer carries none")
		})
	}
}
