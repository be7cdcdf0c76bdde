package admission

import "net/netip"

// Sender is a queue pair for datagrams, by the address at which its device is answered.
type Sender struct {
	Device netip.AddrPort
	QPN    uint32
}

// Senders are the ports that queue pairs send datagrams from, as address handles name them. While
// a handle names a port of a queue pair, datagrams that claim to be from it must come from such a
// port: without that, any program on its host that knows the Q_Key could send them.
type Senders map[Sender]map[uint16]int // how many handles name a port

// Add notes that a handle names the port of a sender. Zero names none.
func (s Senders) Add(from Sender, port uint16) {
	if port == 0 || from.QPN == 0 {
		return
	}
	if s[from] == nil {
		s[from] = make(map[uint16]int)
	}
	s[from][port]++
}

// Remove ends Add.
func (s Senders) Remove(from Sender, port uint16) {
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

// Admit reports whether a datagram from that source may be of the queue pair that it names.
func (s Senders) Admit(source netip.AddrPort, qpn uint32) bool {
	if len(s) == 0 {
		return true
	}
	ports := s[Sender{ReplyAddress(source), qpn}]
	return ports == nil || ports[source.Port()] > 0
}
