package link

// Header holds what packets have in the IP header besides addresses. The invariant CRC
// does not cover it. The zero Header is what packets leave with by default.
type Header struct {
	// FlowLabel has 20 bits. IPv4 has none.
	FlowLabel uint32
	// TrafficClass holds DSCP, in the upper six bits, and ECN.
	TrafficClass uint8
	// HopLimit is the time to live on IPv4. Zero: on packets to send 64, or 1 to a
	// multicast group; on packets received it is not known.
	HopLimit uint8
	// Receiver is in no header. Packets for different ones never share a train, which is
	// steered as a whole (Socket.Steer).
	Receiver uint8
}

const (
	defaultHopLimit = 64
	maxFlowLabel    = 1<<20 - 1
)
