//go:build !unix

package descriptor

import "os"

func openFile(path string) (*os.File, error) { return os.Open(path) }
