package main

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
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

// deviceTowards is the software device on the interface by which the system reaches a host.
func deviceTowards(host string) (string, error) {
	// Connecting a socket for datagrams sends nothing, and asks the system for the route.
	c, err := net.Dial("udp", net.JoinHostPort(host, strconv.Itoa(defaultPort)))
	if err != nil {
		return "", fmt.Errorf("find the way to %s: %w", host, err)
	}
	defer c.Close()
	local, ok := netip.AddrFromSlice(c.LocalAddr().(*net.UDPAddr).IP)
	if !ok {
		return "", fmt.Errorf("find the way to %s: the system names no address of this machine", host)
	}
	return deviceAt(local)
}

// deviceAt is the software device on the interface that has an address.
func deviceAt(addr netip.Addr) (string, error) {
	addr = addr.Unmap().WithZone("")
	if addr.IsLoopback() {
		return loopbackDevice, nil
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			continue // it is gone
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().WithZone("") == addr {
				return "soft-" + i.Name, nil
			}
		}
	}
	return "", fmt.Errorf("no interface of this machine has the address %v", addr)
}
