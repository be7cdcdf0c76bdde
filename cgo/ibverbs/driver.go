//go:build linux && cgo && verbs

package ibverbs

// #cgo CFLAGS: -O2 -Wall
// #cgo LDFLAGS: -ldl
// #include "verbena_ibverbs.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/verbs"
)

// Driver finds and opens RDMA adapters.
type Driver struct{}

// Name implements [verbs.Driver].
func (Driver) Name() string { return "ibverbs" }

var load = sync.OnceValue(func() error {
	if why := C.vb_load(); why != nil {
		return fmt.Errorf("libibverbs cannot be loaded (%s): install it (Debian: libibverbs1 and ibverbs-providers): %w",
			C.GoString(why), verbs.ErrNotSupported)
	}
	return nil
})

// list calls use with the devices of the machine, which are valid until use returns.
func list(use func([]*C.struct_ibv_device) error) error {
	if err := load(); err != nil {
		return err
	}
	var n C.int
	devices, err := C.vb_get_device_list(&n)
	if devices == nil {
		if errors.Is(err, syscall.ENOSYS) || err == nil {
			return use(nil)
		}
		return verbError("ibv_get_device_list", "the devices of this machine", err)
	}
	defer C.vb_free_device_list(devices)
	return use(unsafe.Slice(devices, n))
}

// verbError returns the error of a verb that sets errno.
func verbError(verb, asked string, err error) *Error {
	errno, _ := errors.AsType[syscall.Errno](err)
	return &Error{Verb: verb, Request: asked, Errno: errno, Kind: kindOf(errno), Detail: adviceFor(errno)}
}

// checkErrno returns the error of a verb that returns an errno; nil for zero.
func checkErrno(verb, asked string, errno C.int) error {
	if errno == 0 {
		return nil
	}
	return verbError(verb, asked, syscall.Errno(errno))
}

func nameOf(d *C.struct_ibv_device) string { return C.GoString(&d.name[0]) }

func infoOf(d *C.struct_ibv_device) verbs.DeviceInfo {
	return verbs.DeviceInfo{
		Name: nameOf(d), Driver: "ibverbs",
		GUID:      uint64(C.vb_get_device_guid(d)),
		Interface: interfaceOf(C.GoString(&d.ibdev_path[0]), 1),
	}
}

// Devices implements [verbs.Driver]. On a machine without RDMA devices it returns none,
// and no error. Without libibverbs it returns an error that matches [verbs.ErrNotSupported].
func (Driver) Devices() ([]verbs.DeviceInfo, error) {
	var infos []verbs.DeviceInfo
	err := list(func(devices []*C.struct_ibv_device) error {
		for _, d := range devices {
			infos = append(infos, infoOf(d))
		}
		return nil
	})
	return infos, err
}

// Open implements [verbs.Driver]. The error matches [verbs.ErrNotSupported] if libibverbs is
// missing, [verbs.ErrNoDevice] if there is no such device, and [fs.ErrPermission] if the user
// may not use it. Each matches only one of the three.
func (Driver) Open(name string) (verbs.Device, error) {
	var opened *device
	err := list(func(devices []*C.struct_ibv_device) error {
		for _, d := range devices {
			if nameOf(d) == name {
				var err error
				opened, err = open(d)
				return err
			}
		}
		return noSuchDevice(devices)
	})
	if err != nil {
		return nil, fmt.Errorf("open adapter %q: %w", name, err)
	}
	return opened, nil
}

func noSuchDevice(devices []*C.struct_ibv_device) error {
	if len(devices) == 0 {
		return fmt.Errorf("this machine has no RDMA device (%s): load the driver of the adapter and ib_uverbs, or make a device with \"rdma link add rxe0 type rxe netdev eth0\": %w",
			missingInKernel(), verbs.ErrNoDevice)
	}
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = nameOf(d)
	}
	return fmt.Errorf("the RDMA devices of this machine are %q: %w", names, verbs.ErrNoDevice)
}

// missingInKernel names the first part of the kernel's RDMA stack that is missing.
func missingInKernel() string {
	for _, c := range []struct{ path, without string }{
		{"/sys/class/infiniband", "the kernel has no RDMA core: module ib_core"},
		{"/sys/class/infiniband_verbs", "programs cannot use RDMA: the module ib_uverbs is not loaded"},
		{"/dev/infiniband", "ib_uverbs is loaded, but udev has not created /dev/infiniband"},
	} {
		if _, err := os.Stat(c.path); err != nil {
			return c.without
		}
	}
	return "/sys/class/infiniband is empty"
}

func open(d *C.struct_ibv_device) (*device, error) {
	ctx, err := C.vb_open_device(d)
	if ctx == nil {
		return nil, notOpened("/dev/infiniband/"+C.GoString(&d.dev_name[0]), err)
	}
	return newDevice(ctx, infoOf(d), C.GoString(&d.ibdev_path[0]))
}

// notOpened returns why an existing device cannot be opened.
func notOpened(path string, err error) error {
	switch access := unix.Access(path, unix.R_OK|unix.W_OK); {
	case errors.Is(access, syscall.EACCES), errors.Is(access, syscall.EPERM):
		return &Error{Verb: "ibv_open_device", Request: path, Errno: syscall.EACCES,
			Detail: "this user has no read and write access: run as root, or join the group that owns the file"}
	case errors.Is(access, syscall.ENOENT):
		return &Error{Verb: "ibv_open_device", Request: path, Errno: syscall.ENOENT,
			Detail: "the kernel has the device, but the device file is missing: check that udev is running, and that /dev/infiniband is visible in this container"}
	}
	errno, _ := errors.AsType[syscall.Errno](err)
	return &Error{Verb: "ibv_open_device", Request: path, Errno: errno, Kind: kindOf(errno),
		Detail: "libibverbs cannot open the device: check that its provider is installed (Debian: ibverbs-providers)"}
}
