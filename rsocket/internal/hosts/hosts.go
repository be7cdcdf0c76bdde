// Package hosts has the addresses of hosts: which a name has, how an attempt to connect shares its
// time among them, and which devices lead to them.
package hosts

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/device/route"
)

// Resolve splits HOST:PORT, and returns the addresses of HOST in the order of the system's resolver, and
// the number of PORT, which may be the name of a service of TCP.
// An empty HOST, and an unspecified address, are one empty host: all addresses of this machine for a
// listener, any of them to dial.
func Resolve(ctx context.Context, addr string) (hosts []string, port string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, "", err
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return nil, "", err
	}
	port = strconv.Itoa(number)
	if a, err := netip.ParseAddr(host); host == "" || err == nil && a.Unmap().IsUnspecified() {
		return []string{""}, port, nil
	}
	list, err := route.LookUp(ctx, host)
	for _, a := range list {
		hosts = append(hosts, a.String())
	}
	return hosts, port, err
}

// ToListen is Resolve with IPv4 addresses first, as package net has them for listeners.
func ToListen(addr string) (hosts []string, port string, err error) {
	hosts, port, err = Resolve(context.Background(), addr)
	is6 := func(host string) int {
		if a, err := netip.ParseAddr(host); err == nil && a.Is6() {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(hosts, func(a, b string) int { return is6(a) - is6(b) })
	return hosts, port, err
}

// Dial dials the hosts in turn until one answers, or ctx ends. If all fail,
// the error is that of the first, which the system's resolver prefers. The hosts share the
// time that ctx leaves, as with package net: each has an equal part of what is left when its turn
// comes, but two seconds if there are as many.
func Dial[T any](ctx context.Context, hosts []string, port string, dial func(ctx context.Context, host, addr string) (T, error)) (T, error) {
	var first error
	for i, host := range hosts {
		limited, cancel := share(ctx, len(hosts)-i)
		v, err := dial(limited, host, net.JoinHostPort(host, port))
		cancel()
		if err == nil {
			return v, nil
		}
		if first = cmp.Or(first, err); ended(ctx) {
			break
		}
	}
	var none T
	return none, first
}

// ended reports whether ctx has ended or, if nobody has noticed that yet, its time is over.
func ended(ctx context.Context) bool {
	until, limited := ctx.Deadline()
	return ctx.Err() != nil || limited && !time.Now().Before(until)
}

// share is the part of ctx for the first of so many hosts.
func share(ctx context.Context, left int) (context.Context, context.CancelFunc) {
	until, limited := ctx.Deadline()
	if !limited || left == 1 {
		return ctx, func() {}
	}
	rest := time.Until(until)
	return context.WithTimeout(ctx, max(rest/time.Duration(left), min(rest, 2*time.Second)))
}

// Device is the device for a host: the named one or, without a name, that through which the system
// reaches the host.
func Device(name, host string) (string, error) {
	if name != "" {
		return name, nil
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return "", err
	}
	if a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "" {
		return "", syscall.EINVAL // as connect(2)
	}
	r, err := route.Find("", a)
	if err != nil {
		return "", err
	}
	return r.Device, nil
}
