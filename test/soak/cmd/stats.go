package main

import "fmt"

// The kinds of operations.
const (
	opWrite = iota
	opWriteImm
	opRead
	opSend
	opSendImm
	opCompareSwap
	opFetchAdd
	opDatagram
	opCount
)

var opNames = [opCount]string{"write, read back", "write with immediate", "read", "send", "send with immediate",
	"compare-and-swap", "fetch-and-add", "datagram and echo"}

// stats counts what a process has done and verified so far.
type stats struct {
	Ops         [opCount]uint64
	Bytes       uint64 // moved by this end's operations
	Verified    uint64 // messages and writes with immediate of peers
	Connections uint64 // made; with datagrams, endpoints met
	Abrupt      uint64 // ended by the client during the work
	Lost        uint64 // datagrams without echo
	Links       int    // connections and endpoints in use now
}

func (s *stats) add(o *stats) {
	for i := range s.Ops {
		s.Ops[i] += o.Ops[i]
	}
	s.Bytes += o.Bytes
	s.Verified += o.Verified
	s.Connections += o.Connections
	s.Abrupt += o.Abrupt
	s.Lost += o.Lost
	s.Links += o.Links
}

func (s *stats) ops() (n uint64) {
	for _, v := range s.Ops {
		n += v
	}
	return n
}

// amount is a number of bytes, for people.
func amount(n uint64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 10<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 10<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}
