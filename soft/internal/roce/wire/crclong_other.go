//go:build !amd64

package wire

const (
	hasLong   = false
	longBlock = 256
)

func crcLong(r uint32, p []byte) (uint32, []byte) { return r, p }
