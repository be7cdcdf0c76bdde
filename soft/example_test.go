package soft_test

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// A device that loses a tenth of the packets that arrive. Programs that take the name of a
// device can be tested in the same way with "soft-lo?loss=0.1&seed=7".
func ExampleConfig() {
	dev, err := soft.Open(soft.Config{Faults: soft.Faults{Loss: 0.1, Seed: 7}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(dev.Name(), dev.Driver())
	fmt.Println(dev.Close())
	// Output:
	// soft-lo soft
	// <nil>
}

// The cable is cut and repaired while the device is in use.
func ExampleDevice_SetFaults() {
	dev, err := device.Open("soft-lo")
	if err != nil {
		fmt.Println(err)
		return
	}
	cable := dev.(*soft.Device)
	fmt.Println(cable.SetFaults(soft.Faults{Loss: 1}))
	fmt.Println(cable.SetFaults(soft.Faults{}))
	fmt.Println(errors.Is(cable.SetFaults(soft.Faults{Loss: 7}), verbs.ErrInvalid))
	fmt.Println(dev.Close())
	// Output:
	// <nil>
	// <nil>
	// true
	// <nil>
}
