// Package device finds, opens and queries the devices of every driver in the program: the
// software device always, and adapters through libibverbs with the build tag "verbs".
//
// A device is always opened by its name. There is no silent fallback to another device or
// another kind of device.
package device

import (
	"errors"
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// drivers returns the drivers, in the order in which their devices are listed.
func drivers() []verbs.Driver { return []verbs.Driver{soft.Driver{}, ibverbs.Driver{}} }

// driverOf returns the driver of a device name. The names of software devices have a common
// prefix; all others are adapters.
func driverOf(name string) verbs.Driver {
	if strings.HasPrefix(name, "soft-") || strings.HasPrefix(name, "soft_") {
		return soft.Driver{}
	}
	return ibverbs.Driver{}
}

// List returns the devices that can be opened. If a driver cannot list its devices, List
// returns those of the others together with an error.
func List() ([]verbs.DeviceInfo, error) {
	var list []verbs.DeviceInfo
	var errs []error
	for _, d := range drivers() {
		infos, err := d.Devices()
		list = append(list, infos...)
		if err != nil {
			errs = append(errs, fmt.Errorf("list devices of driver %s: %w", d.Name(), err))
		}
	}
	return list, errors.Join(errs...)
}

// Open opens the device with that name, such as "soft-lo", "soft-192.0.2.7" or "rxe0"; package
// soft explains the names of software devices. An unknown name gives an error that matches
// [verbs.ErrNoDevice] and names the available devices.
//
// Close of the device closes the memory maps and sync events that were made on it, the latest
// first. While a context on it is not Idle, Close fails and closes none of them, so close the
// engine before. If a buffer or a task holds a map or an event, Close fails with an error that
// matches verbs.ErrInUse.
func Open(name string) (verbs.Device, error) {
	dev, err := driverOf(name).Open(name)
	if err == nil {
		return dev, nil
	}
	if !errors.Is(err, verbs.ErrNoDevice) {
		return nil, err
	}
	list, _ := List()
	names := make([]string, len(list))
	for i, info := range list {
		names[i] = info.Name
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%w; there is no device: bring up a network interface, as in: ip link set lo up", err)
	}
	return nil, fmt.Errorf("%w; the available devices are: %s", err, strings.Join(names, ", "))
}
