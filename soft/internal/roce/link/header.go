package link

// Header holds fields of the IP header other than addresses. The invariant CRC does not cover
// them. The zero Header stands for the defaults.
type Header struct {
	// FlowLabel has 20 bits. IPv4 has none.
	FlowLabel uint32
	// TrafficClass holds DSCP, in the upper six bits, and ECN.
	TrafficClass uint8
	// HopLimit is the time to live on IPv4. Zero: for packets sent, 64, or 1 to a multicast
	// group; for packets received, unknown.
	HopLimit uint8
	// Receiver is in no header. Packets with different values never share a train, because a
	// train is steered as a whole (Socket.Steer).
	Receiver uint8
}

const (
	defaultHopLimit = 64
	maxFlowLabel    = 1<<20 - 1
)
