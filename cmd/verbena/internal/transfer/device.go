package transfer

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/verbena-rdma/verbena/device/route"
	"github.com/verbena-rdma/verbena/verbs"
)

// defaultPort is the port on which verbena receive listens: a port of the connection manager,
// unrelated to TCP ports.
const defaultPort = 7470

// loopbackDevice is the software device for programs on one machine. It is the default of
// verbena receive without -l.
const loopbackDevice = "soft-lo"

// splitAddress splits HOST:PORT. The port may be missing.
func splitAddress(text string) (host string, port uint16, err error) {
	host, service, err := net.SplitHostPort(text)
	if err != nil {
		host = text
		if n := len(host); n > 1 && host[0] == '[' && host[n-1] == ']' {
			host = host[1 : n-1]
		} else if _, err := netip.ParseAddr(host); err != nil {
			for _, r := range host {
				if r == ':' || r == '/' {
					return "", 0, fmt.Errorf("%q is not of the form HOST:PORT; write IPv6 addresses in brackets, as in [2001:db8::7]:%d", text, defaultPort)
				}
			}
		}
		return host, defaultPort, nil
	}
	n, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not a port; want 0 to 65535", service)
	}
	return host, uint16(n), nil
}

// deviceTo returns the device through which a host is reached, and the host's first address.
// The device is an adapter, or the software device on the interface of the system's route. An
// address of this machine is reached through the device that has it.
func deviceTo(ctx context.Context, host string) (name string, addr netip.Addr, err error) {
	addrs, err := route.LookUp(ctx, host)
	if err != nil {
		return "", netip.Addr{}, err
	}
	r, err := route.Find("", addrs[0])
	if err != nil {
		return "", netip.Addr{}, err
	}
	return r.Device, addrs[0], nil
}

// loopback reports whether a device connects programs of this machine only: all its addresses
// are loopback addresses.
func loopback(dev verbs.Device) (bool, error) {
	attr, err := dev.Query()
	if err != nil {
		return false, err
	}
	for port := 1; port <= attr.Ports; port++ {
		table, err := dev.GIDs(port)
		if err != nil {
			return false, err
		}
		for _, e := range table {
			if !e.GID.Addr().IsLoopback() {
				return false, nil
			}
		}
	}
	return attr.Ports > 0, nil
}
