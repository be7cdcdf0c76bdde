package link

// split appends the packets of a train. Each has size bytes, except the last; otherwise they
// are like d.
func split(to []Datagram, d Datagram, data []byte, size int) []Datagram {
	if size <= 0 || size >= len(data) {
		d.Data = data[:len(data):len(data)]
		return append(to, d)
	}
	for i := 0; len(data) > 0; i++ {
		n := min(size, len(data))
		d.Data, d.Segment = data[:n:n], i
		to = append(to, d)
		data = data[n:]
	}
	return to
}
