//go:build unix

package descriptor

import (
	"os"

	"golang.org/x/sys/unix"
)

// openFile opens a file. It does not wait for a writer if the file is a pipe.
func openFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
}
