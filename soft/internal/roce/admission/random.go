package admission

import (
	"crypto/rand"
	"encoding/binary"
)

// Random is unpredictable. Keys that grant access to memory are made of it.
func Random() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.NativeEndian.Uint32(b[:])
}
