package congestion

// The two bits of a traffic class in which the network reports congestion (RFC 3168).
const (
	ecnMask        = 3
	ecnCapable     = 2 // ECT(0): the sender reacts to marks
	ecnExperienced = 3 // the mark
)

// Capable returns a traffic class with ECT(0), which says that the sender reacts to marks. If
// the ECN bits are set already, it returns the class unchanged.
func Capable(trafficClass uint8) uint8 {
	if trafficClass&ecnMask == 0 {
		trafficClass |= ecnCapable
	}
	return trafficClass
}

// Mark returns the traffic class of a packet that met congestion. If the sender does not react
// to marks, the class stays unchanged.
func Mark(trafficClass uint8) uint8 {
	if trafficClass&ecnMask != 0 {
		trafficClass |= ecnExperienced
	}
	return trafficClass
}

// Marked reports whether a packet met congestion.
func Marked(trafficClass uint8) bool { return trafficClass&ecnMask == ecnExperienced }
