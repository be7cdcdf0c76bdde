package descriptor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/verbena-rdma/verbena/descriptor"
)

// A descriptor travels as text and is read back.
func Example() {
	b, err := descriptor.Encode(descriptor.Connection, []byte("\x00\x00\x12\xb7\x00\x07soft-lo"))
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
	fmt.Printf("%q\n", payload)
	// Output:
	// -----BEGIN VERBENA CONNECTION-----
	// VlJCTgIBAAAADQAAErcAB3NvZnQtbG+t0sOX
	// -----END VERBENA CONNECTION-----
	// "\x00\x00\x12\xb7\x00\asoft-lo"
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
