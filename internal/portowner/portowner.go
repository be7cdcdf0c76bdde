// Package portowner finds the process that owns a UDP port of this machine. A program that cannot have
// the RoCEv2 port of an address has to know which process has it.
package portowner

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// Owner is the owner of a port.
type Owner struct {
	Addr    netip.AddrPort // the address it is bound to; unspecified: all addresses of the machine
	User    uint32         // its ID
	PID     int            // zero: unknown, or the kernel
	Command string         // of the process; empty if PID is zero
	Kernel  bool           // the socket is the kernel's own, such as that of rxe
}

// String describes the owner.
func (o *Owner) String() string {
	switch {
	case o.Kernel:
		return fmt.Sprintf("the kernel (its RoCE driver rxe, most likely), on %v", o.Addr)
	case o.PID != 0:
		return fmt.Sprintf("process %d (%s) of user %d, on %v", o.PID, o.Command, o.User, o.Addr)
	}
	return fmt.Sprintf("a process of user %d, on %v", o.User, o.Addr)
}

// socket is a line of /proc/net/udp.
type socket struct {
	local netip.AddrPort
	user  uint32
	inode uint64
}

// parse reads a table of sockets in the format of /proc/net/udp and udp6, and returns the
// sockets with the port. It skips lines that it cannot parse.
func parse(r io.Reader, port uint16) (list []socket) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 {
			continue
		}
		local, ok := parseAddr(fields[1])
		user, err := strconv.ParseUint(fields[7], 10, 32)
		inode, failed := strconv.ParseUint(fields[9], 10, 64)
		if ok && err == nil && failed == nil && local.Port() == port {
			list = append(list, socket{local, uint32(user), inode})
		}
	}
	return list
}

// parseAddr parses an address: words of 32 bits in the byte order of the machine, a colon, and
// the port.
func parseAddr(s string) (a netip.AddrPort, ok bool) {
	host, service, ok := strings.Cut(s, ":")
	if !ok {
		return a, false
	}
	port, err := strconv.ParseUint(service, 16, 16)
	if err != nil {
		return a, false
	}
	b, err := hex.DecodeString(host)
	if err != nil || len(b) != 4 && len(b) != 16 {
		return a, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	addr, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), true
}

// covers reports whether a socket receives packets that are sent to an address.
func (s *socket) covers(addr netip.Addr) bool {
	own := s.local.Addr()
	return own == addr || own.IsUnspecified() && (own.Is6() || addr.Is4())
}
