package link

import "net/netip"

// split appends the packets of a train, each of size bytes but the last.
func split(to []Datagram, src netip.AddrPort, data []byte, size int) []Datagram {
	if size <= 0 || size >= len(data) {
		return append(to, Datagram{Src: src, Data: data[:len(data):len(data)]})
	}
	for i := 0; len(data) > 0; i++ {
		n := min(size, len(data))
		to = append(to, Datagram{Src: src, Data: data[:n:n], Segment: i})
		data = data[n:]
	}
	return to
}
