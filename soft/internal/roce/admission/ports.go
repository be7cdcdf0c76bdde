package admission

import (
	"cmp"
	"net/netip"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// A device sends from a port that is bound at all addresses of its host (link.Socket.Source), so
// that nobody else can send from it:
//
//   - Several devices of a host have UDP port 4791, each at its own address. None of them sends
//     from there: each has another port to send from, FirstSendPort or above.
//   - A device with another port sends from it.
//
// So the source of a packet tells where its device listens. Other implementations listen at 4791,
// and send from any port from FirstEntropyPort on, to spread their packets over paths (annex
// A17.4.5).
const (
	FirstEntropyPort = 49152
	// FirstSendPort lies above what Linux gives to sockets that ask for any port.
	FirstSendPort = 61000
)

// ReplyPort is the port to which the sender of a datagram is answered, from the one that it came
// from; zero stands for 4791.
func ReplyPort(source uint16) uint16 {
	if source == wire.UDPPort || source >= FirstEntropyPort {
		return 0
	}
	return source
}

// ReplyAddress is where the sender of a datagram is answered.
func ReplyAddress(source netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(source.Addr(), cmp.Or(ReplyPort(source.Port()), wire.UDPPort))
}

// ListenAddress is where a software device listens that sends from there.
func ListenAddress(source netip.AddrPort) netip.AddrPort {
	if source.Port() >= FirstSendPort {
		return netip.AddrPortFrom(source.Addr(), wire.UDPPort)
	}
	return source
}
