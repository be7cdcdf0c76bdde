//go:build linux

// Package sysfs writes what the kernel shows of RDMA devices in /sys as files of a private folder, to
// which libverbena.so redirects the paths of programs.
//
// verbena run writes a tree for programs that have not loaded the Go half of the library, such as
// shells. A process with the Go half has a tree of its own, with the addresses and counters of its
// devices.
package sysfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/verbena-rdma/verbena/verbs"
)

// Variable is the environment variable with the path of the tree of verbena run.
const Variable = "VERBENA_FILES"

// GIDTable is the size of the smallest GID table that a port reports. As on adapters, entries may
// be empty.
const GIDTable = 16

// Device is what the tree shows of a device.
type Device struct {
	Name   string // that programs see
	Number int    // of uverbs
	Description
}

// Description is soft.Description.
type Description struct {
	Interface string
	GUID      uint64 // host byte order
	EFA       bool
	GIDs      []verbs.GIDEntry
	Counters  []verbs.Counter
}

// WithoutDashes returns the name of a device as programs see it. libfabric and others take a dash for
// the beginning of something else; no device of the kernel's drivers has one.
func WithoutDashes(name string) string { return strings.ReplaceAll(name, "-", "_") }

// ShowNames gives devices the names that programs see. Those that differ in dashes only keep their own.
func ShowNames(list []verbs.DeviceInfo) {
	shown := make(map[string]int)
	for _, info := range list {
		shown[WithoutDashes(info.Name)]++
	}
	for i, info := range list {
		if name := WithoutDashes(info.Name); shown[name] == 1 {
			list[i].Name = name
		}
	}
}

// Tree is a folder with what it shows of /sys.
type Tree struct{ path string }

// Path is the path of the folder that takes the place of /sys.
func (t *Tree) Path() string { return t.path }

// prefix begins the name of every tree. Behind it are the PID of the process that made the tree, when
// the process was started, and its PID namespace. libverbena.so removes a tree when its process exits.
const prefix = "verbena-files-"

// Make makes a tree. It removes those of processes that were killed.
func Make(list []Device) (*Tree, error) {
	folder := os.Getenv("XDG_RUNTIME_DIR")
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		folder = os.TempDir()
	}
	folder, err := filepath.EvalSymlinks(folder) // as the kernel names files that are open
	if err != nil {
		return nil, fmt.Errorf("make a folder for the files of /sys/class/infiniband: %w", err)
	}
	self := self()
	removeStale(folder, self)
	path, err := os.MkdirTemp(folder, fmt.Sprintf("%s%d-%d-%d-", prefix, self.pid, self.started, self.namespace))
	if err != nil {
		return nil, fmt.Errorf("make a folder for the files of /sys/class/infiniband: %w", err)
	}
	t := &Tree{path}
	for i := range list {
		if err := t.Write(&list[i]); err != nil {
			return nil, errors.Join(fmt.Errorf("write the files of /sys/class/infiniband: %w", err), remove(path))
		}
	}
	return t, nil
}

const (
	devices  = "devices/virtual/infiniband"
	verbsDev = "devices/virtual/infiniband_verbs"
	parents  = "devices/virtual/verbena"
)

// Write writes the files of a device, or writes them again.
func (t *Tree) Write(d *Device) error {
	w := writer{root: t.path}
	own, uverbs := devices+"/"+d.Name, fmt.Sprint(verbsDev, "/uverbs", d.Number)
	parentName := d.Name
	if d.EFA {
		parentName = fmt.Sprintf("0000:00:%02x.0", d.Number) // libfabric requires a PCI address
	}
	parent := parents + "/" + parentName
	w.link("../../"+own, "class/infiniband/"+d.Name)
	w.file("class/infiniband_verbs/abi_version", "6")
	w.link("../../"+uverbs, fmt.Sprint("class/infiniband_verbs/uverbs", d.Number))

	w.file(uverbs+"/ibdev", d.Name)
	w.file(uverbs+"/abi_version", "1")
	w.link("../../../../class/infiniband_verbs", uverbs+"/subsystem")
	w.link("../../verbena/"+parentName, uverbs+"/device")

	// Adapters have a parent, by which programs find their network interface and NUMA node.
	w.file(parent+"/numa_node", "-1")
	w.link("../../../infiniband/"+d.Name, parent+"/infiniband/"+d.Name)
	w.link(fmt.Sprint("../../../infiniband_verbs/uverbs", d.Number), fmt.Sprint(parent, "/infiniband_verbs/uverbs", d.Number))
	if d.Interface != "" {
		w.link("/sys/class/net/"+d.Interface, parent+"/net/"+d.Interface)
		w.link("../../../../../"+own, "class/net/"+d.Interface+"/device/infiniband/"+d.Name)
	}

	guid := groups(fmt.Sprintf("%016x", d.GUID))
	w.identity(own, parent, d.EFA)
	w.file(own+"/node_guid", guid)
	w.file(own+"/sys_image_guid", guid)
	w.file(own+"/node_desc", d.Name)
	w.file(own+"/fw_ver", "software")
	w.file(own+"/parent", d.Interface)
	w.file(own+"/uevent", "NAME="+d.Name)
	w.link("../../../../class/infiniband", own+"/subsystem")
	w.link("../../verbena/"+parentName, own+"/device")

	port := own + "/ports/1/"
	w.file(port+"state", "4: ACTIVE")
	w.file(port+"phys_state", "5: LinkUp")
	w.file(port+"rate", "10 Gb/sec (4X SDR)") // as verbs reports a link whose speed is not known
	w.file(port+"link_layer", "Ethernet")
	w.file(port+"cap_mask", "0x04010000") // connection manager, GIDs made of IP addresses
	w.file(port+"lid", "0x0")
	w.file(port+"lid_mask_count", "0")
	w.file(port+"sm_lid", "0x0")
	w.file(port+"sm_sl", "0")
	w.file(port+"pkeys/0", "0xffff")
	w.gids(port, d.GIDs)
	w.counters(port, d.Counters)
	return w.err
}

// identity writes the files by which programs recognise an EFA.
func (w *writer) identity(own, parent string, efa bool) {
	if !efa {
		w.file(own+"/node_type", "1: CA")
		return
	}
	w.file(own+"/node_type", "7: unspecified")
	w.file(parent+"/vendor", "0x1d0f")
	w.file(parent+"/device", "0xefa1")
	w.file(parents+"/drivers/efa/uevent", "")
	w.link("../drivers/efa", parent+"/driver")
}

// WriteCounters writes the counters of a device again.
func (t *Tree) WriteCounters(name string, counters []verbs.Counter) error {
	w := writer{root: t.path}
	w.counters(devices+"/"+name+"/ports/1/", counters)
	return w.err
}

// DeviceOf returns the device whose file has that path.
func (t *Tree) DeviceOf(path string) string {
	path, _ = strings.CutPrefix(path, filepath.Join(t.path, devices)+"/")
	name, _, _ := strings.Cut(path, "/")
	return name
}

// groups separates groups of four hexadecimal digits.
func groups(digits string) string {
	var list []string
	for i := 0; i < len(digits); i += 4 {
		list = append(list, digits[i:i+4])
	}
	return strings.Join(list, ":")
}

// typeNames are the kernel's names.
var typeNames = map[verbs.GIDType]string{verbs.GIDRoCEv1: "IB/RoCE v1", verbs.GIDRoCEv2: "RoCE v2"}

type writer struct {
	root string
	err  error // the first
}

// gids writes a GID table. The kernel has no attributes of an empty entry either: reading them fails.
func (w *writer) gids(port string, entries []verbs.GIDEntry) {
	table := make([]verbs.GID, GIDTable)
	for _, e := range entries {
		for len(table) <= e.Index {
			table = append(table, verbs.GID{})
		}
		table[e.Index] = e.GID
		w.file(fmt.Sprint(port, "gid_attrs/ndevs/", e.Index), e.Interface)
		w.file(fmt.Sprint(port, "gid_attrs/types/", e.Index), typeNames[e.Type])
	}
	for i, gid := range table {
		w.file(fmt.Sprint(port, "gids/", i), groups(fmt.Sprintf("%x", gid[:])))
	}
}

// portCounters are the counters of ports that the device has, with their names in its own list.
var portCounters = map[string]string{
	"sent_pkts": "port_xmit_packets", "rcvd_pkts": "port_rcv_packets",
	"multicast_xmit_packets": "multicast_xmit_packets", "multicast_rcv_packets": "multicast_rcv_packets",
}

func (w *writer) counters(port string, counters []verbs.Counter) {
	for _, c := range counters {
		w.file(port+"hw_counters/"+c.Name, fmt.Sprint(c.Value))
		if name := portCounters[c.Name]; name != "" {
			w.file(port+"counters/"+name, fmt.Sprint(c.Value))
		}
	}
}

// file writes a file. One that exists stays the same file, since a program may have opened it.
func (w *writer) file(path, content string) {
	if w.err != nil {
		return
	}
	path = filepath.Join(w.root, path)
	if w.err = os.MkdirAll(filepath.Dir(path), 0o755); w.err != nil {
		return
	}
	var f *os.File
	if f, w.err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644); w.err != nil {
		return
	}
	defer f.Close()
	content += "\n"
	if _, w.err = f.WriteString(content); w.err == nil {
		w.err = f.Truncate(int64(len(content)))
	}
}

// link makes a symbolic link, unless it exists.
func (w *writer) link(target, path string) {
	if w.err != nil {
		return
	}
	path = filepath.Join(w.root, path)
	if w.err = os.MkdirAll(filepath.Dir(path), 0o755); w.err != nil {
		return
	}
	if err := os.Symlink(target, path); !os.IsExist(err) {
		w.err = err
	}
}
