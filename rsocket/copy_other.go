//go:build !unix

package rsocket

import "errors"

// hasFiles: readFile and writeFile are not called.
const hasFiles = false

func readFile(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }

func writeFile(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }
