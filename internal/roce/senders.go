package roce

import "net/netip"

// senders are the ports that devices send datagrams from, as the address handles of programs
// name them. While there is one for a device, datagrams that claim to be from there have to
// come from a port that is named: whoever has their Q_Key could send them otherwise, from any
// port of that device's host. It is guarded like Device.queuePairs.
type senders struct {
	ports   map[netip.AddrPort]map[uint16]int // how many handles name it, by device and port
	changes uint64
}

func (s *senders) add(device netip.AddrPort, port uint16) {
	if port == 0 {
		return
	}
	if s.ports == nil {
		s.ports = make(map[netip.AddrPort]map[uint16]int)
	}
	if s.ports[device] == nil {
		s.ports[device] = make(map[uint16]int)
	}
	s.ports[device][port]++
	s.changes++
}

func (s *senders) remove(device netip.AddrPort, port uint16) {
	if port == 0 {
		return
	}
	ports := s.ports[device]
	if ports[port]--; ports[port] == 0 {
		delete(ports, port)
	}
	if len(ports) == 0 {
		delete(s.ports, device)
	}
	s.changes++
}

// mayBe reports whether a datagram from there may be from the device that it would be answered at.
func (s *senders) mayBe(source netip.AddrPort) bool {
	if len(s.ports) == 0 {
		return true
	}
	ports := s.ports[answerAt(source)]
	return ports == nil || ports[source.Port()] > 0
}
