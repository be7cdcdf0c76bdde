//go:build linux && cgo && verbs

package main

// #include "device.h"
import "C"

import (
	"os"
	"strings"
	"sync"
	"unsafe"

	"github.com/verbena-rdma/verbena/internal/sysfs"
	"github.com/verbena-rdma/verbena/soft"
)

// files is what the process shows of its devices in /sys: nil until it looks.
var files struct {
	sync.Mutex
	tree    *sysfs.Tree
	numbers map[string]int // of uverbs, by device
}

//export vd_files
func vd_files(path *C.char, size C.size_t) C.int {
	files.Lock()
	defer files.Unlock()
	if files.tree == nil {
		tree, err := newTree()
		if err != nil {
			return errnoOf(err)
		}
		files.tree = tree
	}
	copyString(unsafe.Slice(path, size), files.tree.Path())
	return 0
}

// newTree writes the files of all devices. It opens none: a program that only looks takes no port.
func newTree() (*sysfs.Tree, error) {
	specifications := strings.Fields(os.Getenv("VERBENA_DEVICES"))
	if len(specifications) == 0 {
		infos, err := listDevices()
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			specifications = append(specifications, info.Name)
		}
	}
	list := make([]sysfs.Device, len(specifications))
	numbers := make(map[string]int)
	for i, specification := range specifications {
		name, _, _ := strings.Cut(specification, "?")
		if devicesAreNamed() {
			name = sysfs.WithoutDashes(name)
		}
		numbers[name] = i
		if d := openUnder(name); d != nil {
			var err error
			if list[i], err = d.shown(i); err != nil {
				return nil, err
			}
			continue
		}
		found, err := soft.Driver{}.Describe(specification)
		if err != nil {
			return nil, err
		}
		list[i] = sysfs.Device{Name: name, Number: i, Description: sysfs.Description(found)}
	}
	tree, err := sysfs.Make(list)
	if err == nil {
		files.numbers = numbers
	}
	return tree, err
}

// openUnder returns the open device of a name, or nil.
func openUnder(name string) *openDevice {
	opened.Lock()
	defer opened.Unlock()
	return opened.devices[name]
}

// shown returns what the files show of an open device.
func (d *openDevice) shown(number int) (to sysfs.Device, err error) {
	port, err := d.QueryPort(1)
	if err != nil {
		return to, err
	}
	to.Name, to.Number, to.Interface, to.GUID = d.name, number, port.Interface, d.attr.NodeGUID
	to.EFA = d.isEFA()
	if to.GIDs, err = d.GIDs(1); err != nil {
		return to, err
	}
	to.Counters, err = d.Counters()
	return to, err
}

// showFiles writes the files of a device again that has been opened, since only now its addresses are
// certain.
func (d *openDevice) showFiles() {
	files.Lock()
	defer files.Unlock()
	number, known := files.numbers[d.name]
	if !known {
		return
	}
	to, err := d.shown(number)
	if err == nil {
		err = files.tree.Write(&to)
	}
	if err != nil {
		log := logger()
		log.Warn().Err(err).Str("device", d.name).Msg("its files in /sys/class/infiniband are out of date")
	}
}

//export vd_refresh
func vd_refresh(path *C.char) C.int {
	files.Lock()
	defer files.Unlock()
	if files.tree == nil {
		return noSuch
	}
	d := openUnder(files.tree.DeviceOf(C.GoString(path)))
	if d == nil {
		return noSuch
	}
	counters, err := d.Counters()
	if err == nil {
		err = files.tree.WriteCounters(d.name, counters)
	}
	return errnoOf(err)
}
