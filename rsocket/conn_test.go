package rsocket

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"
)

// The contract of net.Conn, as package nettest checks it.
func TestConn(t *testing.T) {
	for name, dev := range paths {
		t.Run(name, func(t *testing.T) {
			client, server := open(t, dev, Config{}), open(t, dev, Config{})
			nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
				near, far := connect(t, client, server)
				return near, far, func() { _ = near.Close(); _ = far.Close() }, nil
			})
		})
	}
}
