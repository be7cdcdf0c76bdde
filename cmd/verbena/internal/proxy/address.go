package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/internal/hostaddr"
)

// address is LISTEN or TARGET.
type address struct {
	network string // tcp or rdma
	host    string // a name, or an address without brackets; empty in LISTEN: loopback; "*" in LISTEN: all
	port    uint16
}

// String returns what parseAddress takes.
func (a address) String() string {
	if a.host == "" {
		return fmt.Sprintf("%s:%d", a.network, a.port)
	}
	return a.network + ":" + a.hostPort()
}

func (a address) hostPort() string { return net.JoinHostPort(a.host, strconv.Itoa(int(a.port))) }

// with is a with another host.
func (a address) with(host string) address {
	a.host = host
	return a
}

// parseTarget parses TARGET, which names one host.
func parseTarget(text string) (address, error) {
	a, err := parseAddress(text)
	switch {
	case err != nil:
		return a, err
	case a.host == "":
		return a, fmt.Errorf("%q names no host; for a program on this machine, write %v", text, a.with("localhost"))
	case a.host == "*":
		return a, fmt.Errorf("%q is not the address of one host; write %s:HOST:%d", text, a.network, a.port)
	case a.port == 0:
		return a, fmt.Errorf("the port of %q is 0; it must be 1 to 65535", text)
	}
	if ip, err := netip.ParseAddr(a.host); err == nil {
		if why := hostaddr.Unusable(ip); why != "" {
			return a, fmt.Errorf("%q is not the address of one host: %v is %s", text, ip, why)
		}
	}
	return a, nil
}

func parseAddress(text string) (a address, err error) {
	var rest string
	var ok bool
	switch a.network, rest, ok = strings.Cut(text, ":"); {
	case text == "":
		return a, fmt.Errorf("an address is empty: is a shell variable not set? Write tcp:HOST:PORT or rdma:HOST:PORT")
	case !ok || a.network != "tcp" && a.network != "rdma":
		return a, fmt.Errorf("%q does not say which network it belongs to; write tcp:HOST:PORT or rdma:HOST:PORT", text)
	case strings.HasPrefix(rest, "//"):
		return a, fmt.Errorf("%q is a URL; write %s:HOST:PORT, without slashes", text, a.network)
	}
	service := rest
	if strings.Contains(rest, ":") {
		if a.host, service, err = net.SplitHostPort(rest); err != nil {
			return a, fmt.Errorf("%q is not of the form %s:HOST:PORT; write IPv6 addresses in brackets, as in %[2]s:[2001:db8::7]:7471", text, a.network)
		}
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return a, fmt.Errorf("%q has no port: %q is not a number from 0 to 65535; write %s:HOST:PORT", text, service, a.network)
	}
	a.port = uint16(port)
	if strings.ContainsAny(a.host, "/@?# \t") {
		return a, fmt.Errorf("%q is not the name or the address of a host; write %s:HOST:PORT", a.host, a.network)
	}
	return a, nil
}
