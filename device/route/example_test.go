package route_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/device/route"
	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/verbs"
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

// echo is the part of a server of rsockets on one device.
type echo struct {
	dev   verbs.Device
	stack *rsocket.Stack
}

func (e *echo) Listen(addr netip.AddrPort) (port uint16, stop func(), err error) {
	l, err := e.stack.Listen(addr.String())
	if err != nil {
		return 0, nil, err
	}
	stop = func() { _ = l.Close() }
	return l.Addr().(*rsocket.Addr).Port(), stop, nil // and accept connections
}

// Done is for ever open here: a server closes it when Accept says that the device has failed.
func (e *echo) Done() <-chan struct{} { return nil }

func (e *echo) Close() error { return errors.Join(e.stack.Close(), e.dev.Close()) }

// A server that is reached at all addresses of this host, also at those that come later. (With rsockets,
// rsocket.Listen is that.)
func ExampleServe() {
	open := func(name string) (route.Part, error) {
		dev, err := device.Open(name)
		if err != nil {
			return nil, err
		}
		stack, err := rsocket.New(rsocket.Config{Device: dev})
		if err != nil {
			return nil, errors.Join(err, dev.Close())
		}
		return &echo{dev, stack}, nil
	}
	e, err := route.Serve(0, route.ServeConfig{Open: open}) // and a Log
	if err != nil {
		fmt.Println(err)
		return
	}
	localhost := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), e.Port())
	fmt.Println("reached at localhost:", slices.Contains(e.Addrs(), localhost))
	fmt.Println(e.Close())
	// Output:
	// reached at localhost: true
	// <nil>
}
