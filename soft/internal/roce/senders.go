package roce

import "net/netip"

// sender is a queue pair for datagrams, by where its device is answered.
type sender struct {
	device netip.AddrPort
	qpn    uint32
}

// senders are the ports that queue pairs send datagrams from, as the address handles of programs
// name them. While there is one for a queue pair, datagrams that claim to be from it have to
// come from a port that is named: whoever has their Q_Key could send them otherwise, from any
// port of that device's host. It is guarded like Device.queuePairs.
type senders map[sender]map[uint16]int // how many handles name a port

func (s senders) add(from sender, port uint16) {
	if port == 0 || from.qpn == 0 {
		return
	}
	if s[from] == nil {
		s[from] = make(map[uint16]int)
	}
	s[from][port]++
}

func (s senders) remove(from sender, port uint16) {
	ports := s[from]
	if ports == nil || port == 0 {
		return
	}
	if ports[port]--; ports[port] == 0 {
		delete(ports, port)
	}
	if len(ports) == 0 {
		delete(s, from)
	}
}

// mayBe reports whether a datagram from there may be from the queue pair that it names.
func (s senders) mayBe(source netip.AddrPort, qpn uint32) bool {
	if len(s) == 0 {
		return true
	}
	ports := s[sender{answerAt(source), qpn}]
	return ports == nil || ports[source.Port()] > 0
}
