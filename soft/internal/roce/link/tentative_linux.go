package link

import (
	"encoding/hex"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// isTentative reports whether an interface has an IPv6 address that cannot be used yet, or not at
// all, because of duplicate address detection (RFC 4862 5.4).
func isTentative(addr netip.Addr) bool {
	table, err := os.ReadFile("/proc/thread-self/net/if_inet6")
	return err == nil && addr.Is6() && tentativeIn(string(table), addr)
}

// tentativeIn looks an address up in the table if_inet6: address, index of the interface, prefix
// length, scope and flags, in hexadecimal, and the name of the interface.
func tentativeIn(table string, addr netip.Addr) bool {
	bytes := addr.As16()
	text := hex.EncodeToString(bytes[:])
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[0] != text {
			continue
		}
		flags, err := strconv.ParseUint(fields[4], 16, 32)
		if err == nil && flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
			return true
		}
	}
	return false
}
