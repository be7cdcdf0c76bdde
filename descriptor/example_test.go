package descriptor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/verbena-rdma/verbena/descriptor"
)

// A payload of two fields travels as text and is read back.
func Example() {
	var w descriptor.Writer
	w.Uint32(4791)
	w.Counted([]byte("soft-lo"))
	b, err := w.Encode(descriptor.Connection)
	if err != nil {
		fmt.Println(err)
		return
	}
	text := descriptor.Armor(b)
	fmt.Print(text)

	payload, err := descriptor.Decode(descriptor.Connection, []byte(text))
	if err != nil {
		fmt.Println(err)
		return
	}
	r := descriptor.NewReader(payload)
	port, device := r.Uint32(), r.Counted()
	if err := r.Done(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(port, string(device))
	// Output:
	// -----BEGIN VERBENA CONNECTION-----
	// VlJCTgIBAAAADQAAErcAB3NvZnQtbG+t0sOX
	// -----END VERBENA CONNECTION-----
	// 4791 soft-lo
}

func ExampleScanner() {
	b, _ := descriptor.Encode(descriptor.MemoryMap, []byte("payload"))
	pasted := strings.NewReader("The peer says:\r\n" + descriptor.Armor(b))

	kind, desc, err := descriptor.NewScanner(pasted).Next()
	fmt.Println(kind, len(desc), err)
	// Output: memory map 21 <nil>
}

// A descriptor travels as a file that only its owner may read.
func ExampleWriteFile() {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "memory.txt")
	b, _ := descriptor.Encode(descriptor.MemoryMap, []byte("payload"))
	if err := descriptor.WriteFile(path, []byte(descriptor.Armor(b))); err != nil {
		fmt.Println(err)
		return
	}
	read, err := descriptor.ReadFile(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = descriptor.Decode(descriptor.Connection, read)
	fmt.Println(errors.Is(err, descriptor.ErrKind)) // it is that of a memory map
	payload, err := descriptor.Decode(descriptor.MemoryMap, read)
	fmt.Println(string(payload), err)
	// Output:
	// true
	// payload <nil>
}
