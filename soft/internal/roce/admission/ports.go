package admission

import (
	"cmp"
	"net/netip"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// A device sends from a port that is bound at all addresses of its host (link.Socket.Source),
// so that no other program can send from it:
//
//   - Several devices of a host have UDP port 4791, each at its own address. Each of them sends
//     from another port, FirstSendPort or above.
//   - A device with another port sends from it.
//
// So the source of a packet determines where its device listens. Other implementations listen
// at 4791, and send from any port from FirstEntropyPort on, to spread their packets over paths
// (annex A17.4.5).
const (
	FirstEntropyPort = 49152
	// FirstSendPort is above the ports that Linux assigns to sockets that ask for any port.
	FirstSendPort = 61000
)

// ReplyPort returns the UDP port for replies to the sender of a datagram, from the datagram's
// source port. Zero means 4791.
func ReplyPort(source uint16) uint16 {
	if source == wire.UDPPort || source >= FirstEntropyPort {
		return 0
	}
	return source
}

// ReplyAddress returns the address for replies to the sender of a datagram.
func ReplyAddress(source netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(source.Addr(), cmp.Or(ReplyPort(source.Port()), wire.UDPPort))
}

// ListenAddress returns the address at which a software device with that source listens.
func ListenAddress(source netip.AddrPort) netip.AddrPort {
	if source.Port() >= FirstSendPort {
		return netip.AddrPortFrom(source.Addr(), wire.UDPPort)
	}
	return source
}
