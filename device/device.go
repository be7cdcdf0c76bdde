// Package device finds, opens and queries the devices of every driver that is
// built into the program: the software device always, adapters through
// libibverbs with the build tag "verbs".
//
// A device is always opened by its name; there is no silent fallback from one
// device, or one kind of device, to another.
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

// driverOf returns the driver that a name belongs to: the names of software
// devices begin alike, all others are those of adapters.
func driverOf(name string) verbs.Driver {
	if strings.HasPrefix(name, "soft-") {
		return soft.Driver{}
	}
	return ibverbs.Driver{}
}

// List returns the devices that can be opened. Where a driver cannot list its
// own, those of the others come together with an error.
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

// Open opens the device with that name, such as "soft-lo", "soft-192.0.2.7" or
// "rxe0"; package soft explains the names of software devices. An unknown name
// gives an error that matches [verbs.ErrNoDevice] and names the devices there
// are.
//
// Close of the device closes the memory maps and sync events that were made on it,
// the latest first. It fails, and closes none of them, while a context on it is not
// Idle, so close the engine before; and where a buffer or a task holds a map or an
// event, with an error that matches verbs.ErrInUse.
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
	return nil, fmt.Errorf("%w; there are: %s", err, strings.Join(names, ", "))
}
