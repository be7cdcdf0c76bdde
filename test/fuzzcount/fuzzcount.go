// Package fuzzcount counts the inputs that fuzzers pass to the code under test, so that make
// fuzz can report the number of packets.
//
// The environment variable VERBENA_FUZZ_COUNT names a folder. Fuzzing runs several processes,
// which Go ends without notice. Each writes its count, in decimal, to a file of its own there,
// at most one interval late. Without the variable nothing is written.
package fuzzcount

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// Variable is the environment variable that names the folder.
const Variable = "VERBENA_FUZZ_COUNT"

// interval is the number of counts between two writes to the file.
const interval = 1000

// Counter counts for one process. The zero value is ready for use.
type Counter struct {
	mu      sync.Mutex
	count   int
	written int
	file    *os.File
}

var process Counter

// Add adds n to this process's count.
func Add(n int) {
	if dir := os.Getenv(Variable); dir != "" {
		process.add(dir, n)
	}
}

func (c *Counter) add(dir string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count += n
	if c.count < c.written+interval {
		return
	}
	if err := c.write(dir); err != nil {
		panic(fmt.Sprintf("fuzzcount: %s is %q: %v", Variable, dir, err))
	}
	c.written = c.count
}

// write overwrites the file, without truncating it: the number never gets shorter.
func (c *Counter) write(dir string) (err error) {
	if c.file == nil {
		if c.file, err = os.Create(filepath.Join(dir, strconv.Itoa(os.Getpid()))); err != nil {
			return err
		}
	}
	_, err = c.file.WriteAt([]byte(strconv.Itoa(c.count)+"\n"), 0)
	return err
}
