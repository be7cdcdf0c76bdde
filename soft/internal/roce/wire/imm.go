package wire

const (
	// ImmLen is the length of the immediate data header in bytes (IBTA 9.3).
	ImmLen = 4
	// IETHLen is the length of the invalidate extended transport header in bytes
	// (IBTA 9.3): the remote key that the responder is to invalidate.
	IETHLen = 4
	// XRCETHLen is the length of the XRC extended transport header in bytes (annex A14): the
	// number of a shared receive queue in the lower 24 bits.
	XRCETHLen = 4
)
