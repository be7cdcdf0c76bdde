//go:build linux && cgo && verbs

package main

// #include "device.h"
import "C"

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"

	"github.com/verbena-rdma/verbena/internal/sysfs"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// openDevice is a device that is open, for all contexts of the process.
type openDevice struct {
	verbs.Device
	name string // that programs see
	attr verbs.DeviceAttr
	cm   manager
	xrc  xrcDomains
}

// opened are the devices that are open, by name.
var opened struct {
	sync.Mutex
	devices map[string]*openDevice
}

// openNamed opens a device, or returns the one that is open under its name. specification is
// the name with options.
func openNamed(name, specification string) (*openDevice, error) {
	d, isNew, err := openOnce(name, specification)
	if isNew {
		d.showFiles()
	}
	return d, err
}

func openOnce(name, specification string) (d *openDevice, isNew bool, err error) {
	opened.Lock()
	defer opened.Unlock()
	if d := opened.devices[name]; d != nil {
		return d, false, nil
	}
	dev, err := soft.Driver{Log: logger()}.Open(specification)
	if err != nil {
		return nil, false, err
	}
	attr, err := dev.Query()
	if err != nil {
		_ = dev.Close()
		return nil, false, err
	}
	if opened.devices == nil {
		opened.devices = make(map[string]*openDevice)
	}
	d = &openDevice{Device: dev, name: name, attr: attr}
	opened.devices[name] = d
	return d, true, nil
}

// listDevices returns the devices that programs are shown, with the names that they see.
func listDevices() ([]verbs.DeviceInfo, error) {
	if devicesAreNamed() {
		return namedDevices()
	}
	list, err := soft.Driver{}.Devices()
	sysfs.ShowNames(list)
	return list, err
}

func devicesAreNamed() bool { return strings.TrimSpace(os.Getenv("VERBENA_DEVICES")) != "" }

// namedDevices opens the devices that VERBENA_DEVICES names. A wrong name is reported once, on
// standard error, and leaves no device.
var namedDevices = sync.OnceValues(func() ([]verbs.DeviceInfo, error) {
	names := os.Getenv("VERBENA_DEVICES")
	list, err := openAll(names)
	if err != nil {
		fmt.Fprintf(os.Stderr, "verbena: VERBENA_DEVICES=%q: %v\n", names, err)
	}
	return list, err
})

func openAll(names string) (list []verbs.DeviceInfo, err error) {
	seen := make(map[string]bool)
	for _, specification := range strings.Fields(names) {
		name, _, _ := strings.Cut(specification, "?")
		name = sysfs.WithoutDashes(name)
		if len(name) >= C.IBV_SYSFS_NAME_MAX {
			return nil, fmt.Errorf("the name %q has more than %d characters", name, C.IBV_SYSFS_NAME_MAX-1)
		}
		if seen[name] {
			return nil, fmt.Errorf("device %q is named twice", name)
		}
		seen[name] = true
		d, err := openNamed(name, specification)
		if err != nil {
			return nil, err
		}
		list = append(list, verbs.DeviceInfo{Name: name, Driver: "soft", GUID: d.attr.NodeGUID})
	}
	return list, nil
}

//export vd_devices
func vd_devices(list *C.struct_vd_device_info, most C.int, count *C.int) C.int {
	infos, err := listDevices()
	if err != nil {
		return errnoOf(err)
	}
	*count = C.int(len(infos))
	to := unsafe.Slice(list, most)
	for i := range min(len(infos), len(to)) {
		to[i].guid = C.uint64_t(infos[i].GUID)
		if d := openUnder(infos[i].Name); d != nil && d.isEFA() {
			to[i].is_efa = 1
		}
		copyString(to[i].name[:], infos[i].Name)
	}
	return 0
}

// copyString stores a string with its final NUL, cut off if it is too long.
func copyString(to []C.char, s string) {
	n := min(len(s), len(to)-1)
	for i := range n {
		to[i] = C.char(s[i])
	}
	to[n] = 0
}
