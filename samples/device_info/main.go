// Command device_info shows the devices of every driver: their ports, GID tables (the addresses), limits
// and counters, and what RDMA contexts can do on them. With -d it shows one device.
//
// Each device is opened for its attributes. A device that cannot be opened is shown with the
// reason, and the program fails at its end.
package main

import (
	"context"
	"errors"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	sample.Main(sample.Program{
		Name:  "device_info",
		About: "Shows the devices, their ports, addresses, capabilities and counters.",
		Role:  sample.Alone,
	}, run)
}

func run(ctx context.Context, s *sample.Session) error {
	if s.Device != "" {
		return show(s, s.Device)
	}
	list, err := device.List()
	errs := []error{err}
	for i, info := range list {
		if i > 0 {
			s.Print("")
		}
		if err := show(s, info.Name); err != nil {
			s.Print("%s: %v", info.Name, err)
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return errors.Join(errs...)
}

// show opens a device and prints everything about it, or nothing.
func show(s *sample.Session, name string) (err error) {
	dev, err := device.Open(name)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close)
	description, err := device.Describe(dev)
	if err != nil {
		return err
	}
	capabilities, err := rdma.QueryCapabilities(dev, verbs.RC)
	if err != nil {
		return err
	}
	s.Print("%v", description)
	s.Print("%v", capabilities)
	for _, transport := range []verbs.QPType{verbs.UD, verbs.SRD} {
		if !capabilities.Transports.Has(transport) {
			continue
		}
		datagrams, err := rdma.QueryCapabilities(dev, transport)
		if err != nil {
			return err
		}
		s.Print("%v", datagrams)
	}
	return nil
}
