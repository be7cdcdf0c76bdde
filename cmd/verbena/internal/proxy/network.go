package proxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/device/route"
)

// network makes connections of one kind.
type network interface {
	// listen listens on an address. Its listener accepts streams.
	listen(ctx context.Context, a address) (net.Listener, error)
	dial(ctx context.Context, a address) (stream, error)
}

// bindHost returns the host to listen on as package net takes it: empty for all addresses.
func bindHost(a address) string {
	switch a.host {
	case "":
		return "127.0.0.1"
	case "*":
		return ""
	}
	return a.host
}

// tcp is the network of the system.
type tcp struct{}

func (tcp) listen(ctx context.Context, a address) (net.Listener, error) {
	network, host := "tcp", bindHost(a)
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is4() {
		network = "tcp4" // with tcp, 0.0.0.0 has IPv6 too
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, network, a.with(host).hostPort())
	if err != nil {
		return nil, fmt.Errorf("listen on %v: %w", a, err)
	}
	return l, nil
}

func (tcp) dial(ctx context.Context, a address) (stream, error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", a.hostPort())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// loops reports whether connections to the target come back to the listener of an address. A name
// that has no address yet does not.
func loops(ctx context.Context, target, listen address, listener net.Addr) bool {
	at, err := netip.ParseAddrPort(listener.String())
	if err != nil || listener.Network() != target.network || at.Port() != target.port {
		return false
	}
	var asked []netip.Addr
	if listen.network == "rdma" { // it leads to the listener too, which has its device's loopback address
		asked, _ = route.LookUp(ctx, bindHost(listen))
	}
	list, err := route.LookUp(ctx, target.host)
	if err != nil {
		return false
	}
	own, _ := net.InterfaceAddrs()
	for _, addr := range list {
		if addr == at.Addr().Unmap() || addr.Is4() == at.Addr().Unmap().Is4() && slices.Contains(asked, addr) {
			return true
		}
		if at.Addr() == netip.IPv4Unspecified() && addr.Is6() {
			continue
		}
		if at.Addr().IsUnspecified() && (addr.IsLoopback() || slices.ContainsFunc(own, func(a net.Addr) bool {
			p, err := netip.ParsePrefix(a.String())
			return err == nil && p.Addr().Unmap() == addr.WithZone("")
		})) {
			return true
		}
	}
	return false
}
