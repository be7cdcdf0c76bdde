//go:build !linux

package pe

import "runtime"

func openFD() (int, error) {
	return -1, &UnsupportedError{
		Feature:  "a notification descriptor",
		Platform: runtime.GOOS,
		Instead:  "use Engine.Run, or poll with Engine.Progress",
	}
}

// The rest is never called, since there is no descriptor.

func signalFD(int, *[8]byte) {}

func clearFD(int, *[8]byte) error { return nil }

func closeFD(int) error { return nil }
