package rdma

import (
	"fmt"
	"net"
	"strconv"
)

// splitAddr splits HOST:PORT. HOST may be empty, and the port 0.
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

// splitTarget splits the address to dial, and checks the configuration of the dial.
func splitTarget(addr string, cfg *DialConfig, most int) (host string, port uint16, err error) {
	host, port, err = splitAddr(addr)
	switch {
	case err != nil:
	case host == "" || port == 0:
		err = fmt.Errorf("%w: %q; give the host and the port that the peer listens on", ErrInvalid, addr)
	case len(cfg.PrivateData) > most:
		err = fmt.Errorf("%w: %d bytes of private data; a request takes %d", ErrRange, len(cfg.PrivateData), most)
	case cfg.Timeout < 0 && cfg.Timeout != Forever:
		err = fmt.Errorf("%w: DialConfig.Timeout is %s; it must be positive, Forever, or 0 for Config.ConnectTimeout", ErrRange, durationName(cfg.Timeout))
	}
	return host, port, err
}
