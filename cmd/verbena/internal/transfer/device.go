package transfer

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/route"
)

// defaultPort is where verbena receive listens: a port of the connection manager, which
// has nothing to do with those of TCP.
const defaultPort = 7470

// loopbackDevice is the software device for programs of one machine.
const loopbackDevice = "soft-lo"

// splitAddress takes HOST:PORT apart; the port may be missing.
func splitAddress(text string) (host string, port uint16, err error) {
	host, service, err := net.SplitHostPort(text)
	if err != nil {
		host = text
		if n := len(host); n > 1 && host[0] == '[' && host[n-1] == ']' {
			host = host[1 : n-1]
		} else if net.ParseIP(host) == nil {
			for _, r := range host {
				if r == ':' || r == '/' {
					return "", 0, fmt.Errorf("%q is not of the form HOST:PORT; IPv6 addresses stand in brackets, as in [2001:db8::7]:%d", text, defaultPort)
				}
			}
		}
		return host, defaultPort, nil
	}
	n, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%q is no port; 0 to 65535 are", service)
	}
	return host, uint16(n), nil
}

// deviceTo is the device by which a host is reached: an adapter, or the software device on
// the interface that the system's route names. An address of this machine is reached by the
// device that has it.
func deviceTo(ctx context.Context, host string) (name string, err error) {
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return "", err
	}
	r, err := route.Find("", addrs[0].Unmap())
	if err != nil {
		return "", err
	}
	return r.Device, nil
}
