//go:build linux && cgo && verbs

package rsocket_test

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/rig"
	"github.com/verbena-rdma/verbena/verbs"
)

// requireGuest skips tests that TestRig of test/rig runs in its guest.
func requireGuest(t *testing.T) {
	t.Helper()
	if os.Getenv("VERBENA_GUEST") == "" {
		t.Skip("runs in the guest of TestRig of test/rig")
	}
}

// The hosts of the guest's two devices.
const (
	rxeHost  = "10.0.0.1"
	softHost = "10.0.0.2"
)

// openGuest makes a stack on rxe, or on a software device at the other end of its cable.
func openGuest(t *testing.T, onRxe bool) *rsocket.Stack {
	t.Helper()
	var dev verbs.Device
	var err error
	if onRxe {
		dev, err = ibverbs.Driver{}.Open("rxe0")
	} else {
		err = rig.InNamespace("s", func() (err error) {
			dev, err = soft.Open(soft.Config{Interface: "v1"})
			return err
		})
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	s, err := rsocket.New(rsocket.Config{Device: dev})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// The contract of net.Conn beside the kernel's rxe.
func TestGuestConn(t *testing.T) {
	requireGuest(t)
	for _, on := range []struct {
		name            string
		rxeDials, onRxe bool
		host            string
	}{
		{"rxe to rxe", true, true, rxeHost},
		{"rxe to soft", true, false, softHost},
		{"soft to rxe", false, true, rxeHost},
	} {
		t.Run(on.name, func(t *testing.T) {
			client, server := openGuest(t, on.rxeDials), openGuest(t, on.onRxe)
			nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
				l, err := server.Listen(net.JoinHostPort(on.host, "0"))
				if err != nil {
					return nil, nil, nil, err
				}
				defer l.Close()
				// The passive end can give up a connection that the active one takes for established.
				defer time.AfterFunc(patience, func() { _ = l.Close() }).Stop()
				near, err := client.Dial(t.Context(), l.Addr().String())
				if err != nil {
					return nil, nil, nil, err
				}
				far, err := l.Accept()
				return near, far, func() {
					_ = near.Close()
					_ = far.Close()
				}, err
			})
		})
	}
}
