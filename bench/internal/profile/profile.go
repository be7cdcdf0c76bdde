// Package profile writes profiles of the processor time of a program.
package profile

import (
	"errors"
	"os"
	"runtime/pprof"
)

// Start begins a profile that is written to the file at path. stop ends it. Without a path there is
// none.
func Start(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}
