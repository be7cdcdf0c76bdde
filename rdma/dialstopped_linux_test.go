package rdma_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rdma"
)

// A dial that tries once waits, as long as its own time lasts, for a listener of this machine whose
// process is stopped. Its error says what it has waited for.
func TestDialWaitsForStoppedListener(t *testing.T) {
	cs := newDialRig(t)
	server, client := cs.add(rdma.Config{}), cs.add(rdma.Config{MaxConnections: 2})
	cs.start(server, client)
	var request *rdma.ConnectRequest
	l, addr := cs.listen(server, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) { request = q }})
	// The entry of another address stands for a process that is stopped, until it answers.
	target := netip.AddrPortFrom(netip.MustParseAddr("127.11.7.77"), l.Addr().Port())
	entry, err := net.Listen("unix", fmt.Sprintf("@verbena/rdma_cm/tcp/%v", target))
	require.NoError(t, err)
	short, conn := must(client.Dial(target.String(), rdma.DialConfig{Once: true, Timeout: 5 * time.Second})), must(client.Dial(target.String(), rdma.DialConfig{Once: true}))
	cs.until("it waits", func() bool { return conn.DialError() != nil })
	require.ErrorContains(t, conn.DialError(), "it is stopped")
	require.Equal(t, rdma.Connecting, conn.State())
	cs.until("it has failed", func() bool { return short.State() == rdma.Failed })
	require.ErrorIs(t, short.Err(), rdma.ErrTimeout)

	device := netip.AddrPortFrom(netip.MustParseAddrPort(addr).Addr(), server.GID().UDPPort)
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := entry.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(device.String()))
			_ = c.Close()
		}
	}()
	cs.until("it is requested", func() bool { return request != nil })
	require.Equal(t, rdma.Connecting, conn.State())
	require.NoError(t, conn.DialError(), "it waits for the entry no longer")
	must(request.Accept(rdma.AcceptConfig{}))
	cs.until("it is connected", func() bool { return conn.State() != rdma.Connecting })
	require.Equal(t, rdma.Ready, conn.State(), "%v", conn.Err())
	require.NoError(t, conn.DialError())
	require.NoError(t, entry.Close())
	<-served
}
