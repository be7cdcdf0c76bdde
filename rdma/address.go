package rdma

import (
	"fmt"
	"net"
	"strconv"
)

// splitAddr takes HOST:PORT apart. HOST may be empty, and the port 0.
func splitAddr(text string) (host string, port uint16, err error) {
	host, service, err := net.SplitHostPort(text)
	if err != nil {
		return "", 0, fmt.Errorf("%w: %q is not of the form HOST:PORT; IPv6 addresses and GIDs stand in brackets, as in [2001:db8::7]:7471", ErrInvalid, text)
	}
	n, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%w: %q is no port; 0 to 65535 are", ErrInvalid, service)
	}
	return host, uint16(n), nil
}
