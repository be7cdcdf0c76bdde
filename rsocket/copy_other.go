//go:build !unix

package rsocket

import "errors"

// hasFiles: the functions below are not called.
const hasFiles = false

func mayWait(uintptr) bool { return true }

func readFile(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }

func waitsOrEnds(uintptr) error { return nil }

func writeFile(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }
