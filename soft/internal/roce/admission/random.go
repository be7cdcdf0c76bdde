package admission

import (
	"crypto/rand"
	"encoding/binary"
)

// Random returns an unpredictable number. Keys that grant access to memory come from it.
func Random() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.NativeEndian.Uint32(b[:])
}
