//go:build !(linux && cgo && verbs)

package rdmacm

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// Open returns an error that matches [verbs.ErrNotSupported]: this program was built without
// librdmacm.
func Open(dev verbs.Device, _ func(verbs.CMEvent)) (verbs.CM, error) {
	return nil, fmt.Errorf("open connection manager of %s: this program was built without librdmacm: build it on Linux with -tags verbs, which requires cgo (CGO_ENABLED=1), a C compiler and the headers of librdmacm (Debian: librdmacm-dev): %w",
		dev.Name(), verbs.ErrNotSupported)
}
