package roce

import (
	"crypto/rand"
	"encoding/binary"
)

// randomUint32 is unpredictable: keys that grant access to memory are made of it.
func randomUint32() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.NativeEndian.Uint32(b[:])
}
