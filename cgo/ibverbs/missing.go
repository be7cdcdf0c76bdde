//go:build !(linux && cgo && verbs)

package ibverbs

import (
	"fmt"
	"runtime"

	"github.com/verbena-rdma/verbena/verbs"
)

// Driver finds and opens RDMA adapters. This build has no libibverbs: the driver
// has no devices.
type Driver struct{}

// Name implements [verbs.Driver].
func (Driver) Name() string { return "ibverbs" }

// Devices implements [verbs.Driver]: there are none.
func (Driver) Devices() ([]verbs.DeviceInfo, error) { return nil, nil }

// Open implements [verbs.Driver]. It fails with an error that says what the build lacks, and
// matches [verbs.ErrNotSupported] and [verbs.ErrNoDevice].
func (Driver) Open(name string) (verbs.Device, error) {
	why := "build it with -tags verbs, which requires cgo (CGO_ENABLED=1), a C compiler and the headers of libibverbs and librdmacm (Debian: libibverbs-dev, librdmacm-dev)"
	if runtime.GOOS != "linux" {
		why = "RDMA adapters work on Linux only, not on " + runtime.GOOS
	}
	return nil, fmt.Errorf("open adapter %q: this program was built without libibverbs: %s: %w: %w", name, why, verbs.ErrNotSupported, verbs.ErrNoDevice)
}
