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
	"github.com/verbena-rdma/verbena/internal/routes"
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
	case portClosed(err) && !addr.IsLoopback():
		return r.unanswered(ctx, addr)
	case errors.Is(err, rdma.ErrNotListening) && addr.IsLoopback():
		return []string{"No program on this machine listens on port " + strconv.Itoa(port) + ` of a software device: start "verbena ping -s -d ` + r.opened.Device + `".`}
	case errors.Is(err, rdma.ErrNotListening):
		return []string{"The connection manager of the host answers, so packets get through in both directions, but no program listens on port " + strconv.Itoa(port) + " at this address.",
			otherAddress, `Or start "verbena ping -s" or "rping -s" there; other programs do not speak this protocol.`}
	case errors.Is(err, rdma.ErrRejected) && errors.As(err, &rejected):
		lines := []string{"Packets get through in both directions, but the other end rejected the connection (" + rejected.Reason.String() + ")."}
		if text := strings.TrimRight(string(rejected.PrivateData), "\x00"); text != "" {
			lines = append(lines, "It gave this reason: "+strconv.Quote(text))
		}
		return lines
	case errors.Is(err, rdma.ErrUnreachable), errors.Is(err, rdma.ErrTimeout) && r.during == stageConnect:
		return append([]string{"No connection manager answers at this address."}, r.unanswered(ctx, addr)...)
	case r.during == stageConnect:
		return nil
	case errors.Is(err, rdma.ErrPeerDead):
		return []string{"The server, on this machine, ended without closing the connection: it was killed or crashed. The network is not the cause."}
	case errors.Is(err, errData):
		return []string{"Packets are modified in transit, or the server does not speak this protocol."}
	case r.large || r.client.size > int(r.client.Connection().MTU()):
		return []string{"Small packets get through, packets of the path MTU do not: a link on the path has a smaller MTU than the interface of this host.",
			"Look for tunnels, compare the MTU of both interfaces (ip link), and lower it at both ends."}
	case errors.Is(err, rdma.ErrPeerClosed):
		return []string{"The server ended, or refused the size: rping -s accepts no more bytes than its -S."}
	}
	return []string{"The connection was set up, but its packets do not get through, or no longer: is the server still running, and not stopped?"}
}

// portClosed reports whether the host has said that nobody has the device's UDP port.
func portClosed(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// stalled reports whether a process of this machine has the listener, and does not answer.
func stalled(err error, addr netip.Addr) bool {
	var failed *verbs.CMError
	return errors.As(err, &failed) && failed.Step == verbs.CMStepResolve && errors.Is(err, verbs.ErrUnreachable) && routes.Local(addr)
}

// otherAddress is advice for an address at which nobody listens.
const otherAddress = `The server may listen at another address of that host: "verbena ping -s" prints those that it serves.`

// unanswered finds out why a host may not answer.
func (r *rounds) unanswered(ctx context.Context, addr netip.Addr) []string {
	var lines []string
	if stalled(r.failure, addr) {
		return []string{"The process that listens there is one of this machine. It is stopped (by SIGSTOP or a debugger: kill -CONT continues it) or too busy; the network is not the cause."}
	}
	if e := r.opened.entry; e.UDPPort != 0 && e.UDPPort != roceUDPPort && !e.SharesPort {
		lines = append(lines, "This device uses UDP port "+strconv.Itoa(int(e.UDPPort))+" (see above), but adapters and the kernel's RoCE driver answer only to port 4791.")
	}
	switch alive := probe(ctx, addr); {
	case portClosed(r.failure):
		lines = append(lines, "The host is up and reports that UDP port 4791 is closed: no RoCE device is active at this address.", otherAddress,
			`Or start "verbena ping -s" there, or configure its adapter or rxe (rdma link).`)
	case alive && closedPortsAnswer(ctx, addr):
		lines = append(lines, "The host is up, and reports closed UDP ports, but not port 4791: something there has that port, and does not answer.",
			"So the process is stopped (by SIGSTOP or a debugger: kill -CONT continues it) or too busy, or a rule there drops packets to this port alone.",
			"Check there: ss -ulnp sport = :4791; ps -o stat,args (T is stopped); nft list ruleset.")
	case alive:
		lines = append(lines, "The host is up, because it answers to TCP. So a firewall there or on the path blocks UDP port 4791, or no RoCE device listens on that address.",
			"Check there: rdma link; ss -ulnp sport = :4791; nft list ruleset. Both directions must be open for packets from any port to port 4791.")
	default:
		lines = append(lines, "It does not answer to TCP either: the host may be down, the address may be wrong, or a firewall drops everything.",
			"Check ping and ip route get "+addr.String()+" first.")
	}
	if r.opened.Target.Is6() {
		lines = append(lines, "The IPv4 address of the host may work.")
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

// closedPortsAnswer reports whether a host says by ICMP that a UDP port is closed. Port 1 is: tcpmux has
// it, which is not used any more, and was for TCP.
func closedPortsAnswer(ctx context.Context, addr netip.Addr) bool {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", net.JoinHostPort(addr.String(), "1"))
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	for range 4 { // packets may be lost
		if _, err = conn.Write(nil); err == nil {
			_ = conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
			_, err = conn.Read(make([]byte, 1))
		}
		if errors.Is(errno.Named(err), syscall.ECONNREFUSED) {
			return true
		}
	}
	return false
}
