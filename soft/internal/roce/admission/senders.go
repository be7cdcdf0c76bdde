package admission

import "net/netip"

// Sender is a queue pair for datagrams, with the address for replies to its device.
type Sender struct {
	Device netip.AddrPort
	QPN    uint32
}

// Senders are the source ports of queue pairs for datagrams, as address handles name them.
// While a handle names a port of a queue pair, datagrams that claim to come from the queue
// pair must come from such a port. Otherwise any program on its host that knows the Q_Key
// could send them.
type Senders map[Sender]map[uint16]int // number of handles that name each port

// Add records that a handle names the port of a sender. Zero names none.
func (s Senders) Add(from Sender, port uint16) {
	if port == 0 || from.QPN == 0 {
		return
	}
	if s[from] == nil {
		s[from] = make(map[uint16]int)
	}
	s[from][port]++
}

// Remove undoes Add.
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

// Admit reports whether a datagram from that source may come from the queue pair that it
// names.
func (s Senders) Admit(source netip.AddrPort, qpn uint32) bool {
	if len(s) == 0 {
		return true
	}
	ports := s[Sender{ReplyAddress(source), qpn}]
	return ports == nil || ports[source.Port()] > 0
}
