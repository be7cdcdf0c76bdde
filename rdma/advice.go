package rdma

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/internal/pathmtu"
	"github.com/verbena-rdma/verbena/rdma/internal/deviceport"
	"github.com/verbena-rdma/verbena/verbs"
)

// pathMTU returns how long a packet between two addresses may be. Tests replace it.
var pathMTU = pathmtu.Of

// longestHeaders is the length of what a packet of a write or send has besides data: base and
// extended transport header, immediate value, invariant CRC, and the header of UDP.
const longestHeaders = 12 + 16 + 4 + 4 + 8

// packetLength is the length of the connection's longest packets, with all headers.
func packetLength(mtu verbs.MTU, peer netip.Addr) int {
	ip := 40
	if peer.Unmap().Is4() {
		ip = 20
	}
	return int(mtu) + longestHeaders + ip
}

// noResponseAdvice says what to do if the peer does not answer. It gives a reason if the
// device knows that the process of the peer is dead, or the system knows that the connection's
// packets are too long for the path.
func (conn *Connection) noResponseAdvice() string {
	conn.ctx.takeEvents() // the device reports a death before the requests fail because of it
	if conn.life.Dead() {
		return ErrPeerDead.Error()
	}
	own, peer := conn.LocalAddr().Addr(), conn.PeerAddr().Addr()
	if why := deviceport.Problem(conn.ctx.dev, conn.path.port, own); why != "" {
		return why
	}
	advice := statusOf(verbs.StatusRetryExceeded).advice
	if conn.path.mtu == 0 || !peer.IsValid() || conn.ctx.port.State().GID.Type != verbs.GIDRoCEv2 {
		return advice
	}
	length := packetLength(conn.path.mtu, peer)
	if carries, ok := pathMTU(own, peer); ok && carries < length {
		fits := verbs.MTU(0)
		for mtu := verbs.MTU(256); mtu < conn.path.mtu && packetLength(mtu, peer) <= carries; mtu *= 2 {
			fits = mtu
		}
		if fits == 0 {
			return fmt.Sprintf("packets of %d bytes are too long for the route to %v, which carries %d bytes: no path MTU fits", length, peer, carries)
		}
		return fmt.Sprintf("packets of %d bytes are too long for the route to %v, which carries %d bytes; %s", length, peer, carries, conn.lowerMTUAdvice(fmt.Sprintf("to %d", int(fits))))
	}
	return fmt.Sprintf("%s, including those of %d bytes; if only short messages arrive, %s", advice, length, conn.lowerMTUAdvice(fmt.Sprintf("below %d", int(conn.path.mtu))))
}

// lowerMTUAdvice says how to lower the path MTU of a connection whose packets are too long.
func (conn *Connection) lowerMTUAdvice(to string) string {
	const byInterface = "lower the MTU of %s network interface, from which the kernel's connection manager derives the path MTU, until the path MTU falls %s"
	switch {
	case conn.bridged():
		return fmt.Sprintf("set the path MTU of the queue pairs of both ends %s", to)
	case conn.dialled != "":
		if !conn.ctx.set.cmPathMTU {
			return fmt.Sprintf(byInterface, "the", to)
		}
		return fmt.Sprintf("set Config.Path.MTU %s", to)
	case conn.accepted != nil:
		return fmt.Sprintf("set Config.Path.MTU %s at the end that dials, or, if that end uses an adapter, "+byInterface, to, "its", to)
	}
	return fmt.Sprintf("set Config.Path.MTU %s at either end", to)
}

// mtuMismatchAdvice names another possible reason for a refused request or answer: different
// path MTUs. This is possible only on connections of Bridge, since the ends of all others have
// agreed on the path MTU.
func (conn *Connection) mtuMismatchAdvice(status verbs.Status) string {
	if !conn.bridged() || conn.life.Dead() {
		return ""
	}
	switch status {
	case verbs.StatusRemoteInvalidRequest, verbs.StatusRemoteOperationError, verbs.StatusBadResponse, verbs.StatusLocalLengthError, verbs.StatusRetryExceeded:
		return fmt.Sprintf("; or the path MTUs of the two ends differ: this end has %d, and the peer must have the same", int(conn.path.mtu))
	}
	return ""
}

// adviceFor says what to do about a request that failed.
func (conn *Connection) adviceFor(op Operation, status verbs.Status) string {
	advice := adviceFor(op, status)
	if status == verbs.StatusRetryExceeded || status == verbs.StatusResponseTimeout {
		advice = conn.noResponseAdvice()
	}
	return advice + conn.mtuMismatchAdvice(status)
}

// portAdvice names the UDP port of this end if adapters and the kernel cannot send to it.
func (c *core) portAdvice() string {
	gid := c.port.State().GID
	port := gid.UDPPort
	if port == 0 || port == roceUDPPort || gid.SharesPort {
		return ""
	}
	return fmt.Sprintf("; this end uses UDP port %d, since another program has port %d: software devices can send to it, adapters and the kernel cannot", port, roceUDPPort)
}

// timeoutError is the error of a connection whose peer did not connect.
func (conn *Connection) timeoutError(limit time.Duration) error {
	if err := conn.transition.last; err != nil {
		return fmt.Errorf("%w after %v: the last attempt failed: %w", ErrTimeout, limit, err)
	}
	if why := deviceport.Problem(conn.ctx.dev, conn.path.port, conn.LocalAddr().Addr()); why != "" {
		return fmt.Errorf("%w: the peer did not connect within %v: %s", ErrTimeout, limit, why)
	}
	return fmt.Errorf("%w: the peer did not connect within %v; check that the peer runs, that it has this end's descriptor, and that UDP packets get through%s",
		ErrTimeout, limit, conn.ctx.portAdvice())
}
