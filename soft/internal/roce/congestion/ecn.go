package congestion

// The two bits of a traffic class that are the network's to report congestion by (RFC 3168).
const (
	ecnMask     = 3
	ecnCapable  = 2 // ECT(0): the sender reacts to marks
	experienced = 3 // the mark
)

// Capable returns a traffic class that says that the sender reacts to marks, unless it says
// something of marks already.
func Capable(trafficClass uint8) uint8 {
	if trafficClass&ecnMask == 0 {
		trafficClass |= ecnCapable
	}
	return trafficClass
}

// Mark returns the traffic class of a packet that met congestion. One whose sender does not react
// to marks stays as it is.
func Mark(trafficClass uint8) uint8 {
	if trafficClass&ecnMask != 0 {
		trafficClass |= experienced
	}
	return trafficClass
}

// Marked reports whether a packet met congestion.
func Marked(trafficClass uint8) bool { return trafficClass&ecnMask == experienced }
