package pingpong

import (
	"fmt"
	"os"
	"runtime"

	"github.com/verbena-rdma/verbena/verbs"
)

// filler is the byte that fills messages.
const filler = 0x7b

// Memory allocates memory for one message after head bytes. It does not move until free is
// called.
func (o *Options) Memory(head int) (mem []byte, free func()) {
	mem = make([]byte, max(head+o.Size, 1))
	for i := range mem {
		mem[i] = filler
	}
	if o.Client() && o.Check {
		mark(mem[head : head+o.Size])
	}
	var pinner runtime.Pinner
	pinner.Pin(&mem[0])
	return mem, pinner.Unpin
}

// mark clears the first byte of each page, for a server that validates the message.
func mark(message []byte) {
	for i := 0; i < len(message); i += os.Getpagesize() {
		message[i] = 0
	}
}

// Entry returns the scatter-gather list of n bytes of a region, empty if n is 0.
func Entry(mr verbs.MR, at, n int) []verbs.SGE {
	if n == 0 {
		return nil
	}
	return []verbs.SGE{{Addr: mr.Addr() + uint64(at), Length: uint32(n), LKey: mr.LKey()}}
}

// Validate checks all bytes that a server has received, if that was asked for. The C programs
// check the first byte of each page.
func (o *Options) Validate(message []byte) error {
	if !o.Check || o.Client() {
		return nil
	}
	for i, b := range message {
		want := byte(filler)
		if i%os.Getpagesize() == 0 {
			want = 0
		}
		if b != want {
			return fmt.Errorf("invalid data in page %d: byte %d of the message is %#02x, want %#02x; was the client started with -c too?", i/os.Getpagesize(), i, b, want)
		}
	}
	return nil
}
