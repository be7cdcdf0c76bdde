package rdmacm_test

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/cgo/internal/rdmacm"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/verbs"
)

// Programs ask the device for its connection manager. That of this package is for
// adapters; the software device has its own.
func ExampleOpen() {
	dev, err := device.Open("soft-lo")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	handle := func(e verbs.CMEvent) { fmt.Println(e.Type) }
	if d, ok := dev.(verbs.CMDevice); ok {
		cm, err := d.OpenCM(handle)
		fmt.Println("its own:", err)
		defer cm.Close()
	}
	_, err = rdmacm.Open(dev, handle)
	fmt.Println("librdmacm's:", errors.Is(err, verbs.ErrNotSupported))
	// Output:
	// its own: <nil>
	// librdmacm's: true
}
