package route_test

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/device/route"
)

// The device for a host, by the system's routes.
func ExampleFind() {
	list, err := route.LookUp(context.Background(), "127.0.0.1") // or a name
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := route.Find("", list[0])
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Device, "on", r.Interface)
	// Output: soft-lo on lo
}

// Which of a device's GIDs leads to a host, and why.
func ExampleRoute_Rank() {
	list, err := route.LookUp(context.Background(), "127.0.0.1")
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := route.Find("soft-lo", list[0])
	if err != nil {
		fmt.Println(err)
		return
	}
	dev, err := device.Open(r.Device)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	if err := r.Rank(dev); err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range r.Candidates {
		if c.Used {
			fmt.Println("port", c.Port, "uses", c.Entry.Type) // c.Why says why
		}
	}
	// Output: port 1 uses RoCEv2
}
