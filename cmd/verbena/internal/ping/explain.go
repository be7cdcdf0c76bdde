package ping

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/errno"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// explain prints likely causes of a failure, and what to do about them.
func (r *rounds) explain(ctx context.Context, addr netip.Addr, port int) {
	r.out.line("FAILED", "%v: %v", r.during, r.failure)
	for _, line := range r.advice(ctx, addr, port) {
		r.out.line("", "%s", line)
	}
}

func (r *rounds) advice(ctx context.Context, addr netip.Addr, port int) []string {
	err := r.failure
	var rejected *verbs.CMError
	switch {
	case errors.Is(err, rdma.ErrNotListening) && addr.IsLoopback():
		return []string{"No program of this machine listens on port " + strconv.Itoa(port) + ` by a software device: start "verbena ping -s -d ` + r.opened.Device + `".`}
	case errors.Is(err, rdma.ErrNotListening):
		return []string{"The connection manager there answers: packets get through both ways, and nobody listens on port " + strconv.Itoa(port) + ".",
			`Start "verbena ping -s" there, or "rping -s"; other programs than these do not speak ping's protocol.`}
	case errors.Is(err, rdma.ErrRejected) && errors.As(err, &rejected):
		lines := []string{"Packets get through both ways; the other end does not want the connection (" + rejected.Reason.String() + ")."}
		if text := strings.TrimRight(string(rejected.PrivateData), "\x00"); text != "" {
			lines = append(lines, "It says: "+strconv.Quote(text))
		}
		return lines
	case errors.Is(err, rdma.ErrUnreachable), errors.Is(err, rdma.ErrTimeout) && r.during == stageConnect:
		return append([]string{"No connection manager there answers."}, r.unanswered(ctx, addr)...)
	case r.during == stageConnect:
		return nil
	case strings.Contains(err.Error(), "the process of the peer is dead"):
		return []string{"The server was on this machine, and has ended without saying so: it was killed, or has crashed. The way is not to blame."}
	case errors.Is(err, errData):
		return []string{"Packets are changed on the way, or the server is not of this protocol."}
	case r.large || r.client.size > int(r.client.Connection().MTU()):
		return []string{"Small packets get through, those of the path MTU do not: something on the way carries less than the interface here.",
			"Look for tunnels; compare the MTU of both interfaces (ip link); lower it at both ends."}
	case errors.Is(err, rdma.ErrPeerClosed):
		return []string{"The server has ended, or has refused the size: rping -s takes no more bytes than its -S says."}
	}
	return []string{"The connection was set up, and its packets do not get through, or no more: is the server alive?"}
}

// unanswered finds out why a host may not answer.
func (r *rounds) unanswered(ctx context.Context, addr netip.Addr) []string {
	var lines []string
	if e := r.opened.entry; e.UDPPort != 0 && e.UDPPort != roceUDPPort {
		lines = append(lines, "This device has UDP port "+strconv.Itoa(int(e.UDPPort))+" (see above): the kernel's RoCE and adapters answer to port 4791 only, and to no other.")
	}
	switch alive := probe(ctx, addr); {
	case strings.Contains(r.failure.Error(), "no process has the peer's UDP port"):
		lines = append(lines, "The host is there, and says that nobody has UDP port 4791: it has no RoCE device in use.",
			`Start "verbena ping -s" there, or set up its adapter or rxe (rdma link).`)
	case alive:
		lines = append(lines, "The host is there: it answers to TCP. So UDP port 4791 is closed by a firewall, there or on the way, or no RoCE device listens on that address.",
			"There: rdma link; ss -ulnp sport = :4791; nft list ruleset. Both ways have to be open, for packets from any port to port 4791.")
	default:
		lines = append(lines, "It does not answer to TCP either: the host may be down, the address another's, or a firewall drops everything.",
			"Check ping and ip route get "+addr.String()+" first.")
	}
	if r.opened.Target.Is6() {
		lines = append(lines, "Its IPv4 address may work where this one does not.")
	}
	return lines
}

// probe reports whether a host answers to TCP; a refusal counts as an answer.
func probe(ctx context.Context, addr netip.Addr) bool {
	d := net.Dialer{Timeout: 2 * time.Second}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(addr.String(), "4791"))
	if err == nil {
		_ = conn.Close()
	}
	err = errno.Named(err)
	return err == nil || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}
