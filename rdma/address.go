package rdma

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/verbena-rdma/verbena/internal/hostaddr"
)

// splitAddr splits HOST:PORT. HOST may be empty, and the port 0.
func splitAddr(text string) (host string, port uint16, err error) {
	host, service, err := net.SplitHostPort(text)
	if err != nil {
		return "", 0, fmt.Errorf("%w: %q is not HOST:PORT; put IPv6 addresses and GIDs in brackets, as in [2001:db8::7]:7471", ErrInvalid, text)
	}
	n, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%w: port %q is not a number from 0 to 65535", ErrInvalid, service)
	}
	return host, uint16(n), nil
}

// splitTarget splits the address to dial, and checks the configuration of the dial. The unspecified
// address is one of the device, as in rdma_resolve_addr(3).
func (c *core) splitTarget(addr string, cfg *DialConfig, most int) (host string, port uint16, err error) {
	host, port, err = splitAddr(addr)
	switch {
	case err != nil:
	case host == "" || port == 0:
		err = fmt.Errorf("%w: the address %q lacks a host or a port; give those that the peer listens on", ErrInvalid, addr)
	case len(cfg.PrivateData) > most:
		err = fmt.Errorf("%w: the private data has %d bytes; a request holds at most %d", ErrRange, len(cfg.PrivateData), most)
	case cfg.Timeout < 0 && cfg.Timeout != Forever:
		err = fmt.Errorf("%w: DialConfig.Timeout is %s; it must be positive, Forever, or 0 for Config.ConnectTimeout", ErrRange, durationName(cfg.Timeout))
	}
	if a, notIP := netip.ParseAddr(host); err == nil && notIP == nil {
		own := cfg.LocalAddr
		if !own.IsValid() {
			own = c.port.IP()
		}
		switch why := hostaddr.Unusable(a); {
		case a.Unmap().IsUnspecified() && own.IsValid():
			host = asPeersKnow(own).String()
		case why != "":
			err = fmt.Errorf("%w: %v is %s; give the address of one host", ErrInvalid, a, why)
		}
	}
	return host, port, err
}

// asPeersKnow returns the address by which programs of this machine find a listener at an address of the
// device: each software device of the loopback interface has an address of its own, and they dial
// 127.0.0.1.
func asPeersKnow(own netip.Addr) netip.Addr {
	if own.Is4() && own.IsLoopback() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return own
}
