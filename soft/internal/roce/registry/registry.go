// Package registry lets processes of one machine find out which of their software devices
// listens on an address and port of the connection manager. Each device of a loopback
// interface has its own address, and of several devices on one address all but the first have
// a UDP port other than 4791. A program that dials 127.0.0.1, or an address of the machine,
// cannot know these.
//
// An entry is a Unix socket, whose name holds the port space, the address and the port. A
// process that connects to it reads the address and UDP port of the device; the connection stays open
// while the entry holds. Before a process gives up the name, it closes that. Since a process that
// is no Verbena program need not, an answer is used again for at most a second. The sockets are
// abstract Unix sockets of Linux (unix(7)): they belong to the network namespace, as the
// devices' sockets do, and end with their process. As with ports, any process can be the first
// to take a name. Other systems have no such sockets: nothing is registered and nothing is
// found there.
package registry

import (
	"errors"
	"fmt"
	"net/netip"
)

// Space is a port space of the connection manager (rdma_create_id(3)).
type Space string

// The port spaces.
const (
	TCP Space = "tcp"
	UDP Space = "udp"
)

// maxEntryLen is the length of the longest entry.
const maxEntryLen = len("[ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255]:65535")

// name returns the socket's name.
func name(space Space, addr netip.AddrPort) string {
	return fmt.Sprintf("@verbena/rdma_cm/%s/%v", space, netip.AddrPortFrom(addr.Addr().Unmap().WithZone(""), addr.Port()))
}

// ErrNotRegistered: no process of this machine listens there. ErrNoResponse: one does, and does
// not respond.
var (
	ErrNotRegistered = errors.New("no listener is registered")
	ErrNoResponse    = errors.New("the process does not respond")
)

// plausible reports whether a device may be the one that listens on an address.
func plausible(addr netip.Addr, device netip.AddrPort) bool {
	d := device.Addr()
	return device.Port() != 0 && (d.WithZone("") == addr.WithZone("") || d.IsLoopback() && addr.IsLoopback() && d.Is4() == addr.Is4())
}
