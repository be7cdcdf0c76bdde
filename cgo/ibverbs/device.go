//go:build linux && cgo && verbs

package ibverbs

// #include "verbena_ibverbs.h"
// #include <net/if.h>
import "C"

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"unsafe"

	"github.com/verbena-rdma/verbena/cgo/internal/abi"
	"github.com/verbena-rdma/verbena/cgo/internal/efa"
	"github.com/verbena-rdma/verbena/internal/closers"
	"github.com/verbena-rdma/verbena/verbs"
)

// Device is an open adapter. It implements [verbs.Device].
type device struct {
	info      verbs.DeviceInfo
	sysfs     string
	attr      verbs.DeviceAttr // without MaxInline, which the first Query probes
	defaultPD *protectionDomain
	events    events

	probe  sync.Once
	inline int

	fields     verbs.WCFields // of completions; guarded by mu, like fieldsRead
	fieldsRead bool
	lids       bool        // a port is on InfiniBand, so receives can have LIDs
	efa        *efa.Device // nil: the device is not an EFA
	efaErr     error       // why an EFA has no SRD
	// extended: always poll and post by the extended calls, even if the plain ones would do;
	// for tests.
	extended bool

	// handles is locked for reading during a post, and for writing while an address handle, a
	// memory window or a region with windows is destroyed, which a post may name.
	handles sync.RWMutex
	// numbers is locked for reading while a queue pair is created, and for writing while one is
	// destroyed: the new one could get the number of the old one.
	numbers sync.RWMutex

	mu      sync.Mutex
	ctx     *C.struct_ibv_context // nil when closed
	domains int                   // besides the default one
	vectors int                   // completion vectors
	vector  int                   // completion vector of the next completion queue
	queues  map[uint64]*completionQueue
	shared  map[uint64]*sharedReceiveQueue
	pairs   map[uint32]*queuePair

	managers int // connection managers; guarded by mu

	closers closers.List // of memory maps and the like
}

func newDevice(ctx *C.struct_ibv_context, info verbs.DeviceInfo, sysfs string) (*device, error) {
	d := &device{
		vectors: int(ctx.num_comp_vectors),
		vector:  rand.IntN(max(int(ctx.num_comp_vectors), 1)), // so that processes start at different ones
		info:    info, sysfs: sysfs, ctx: ctx,
		queues: make(map[uint64]*completionQueue),
		shared: make(map[uint64]*sharedReceiveQueue),
		pairs:  make(map[uint32]*queuePair),
	}
	if err := d.begin(); err != nil {
		C.vb_close_device(ctx)
		return nil, err
	}
	return d, nil
}

func (d *device) begin() error {
	if err := d.readAttr(); err != nil {
		return err
	}
	pd, err := C.vb_alloc_pd(d.ctx)
	if pd == nil {
		return verbError("ibv_alloc_pd", "the default protection domain of "+d.info.Name, err)
	}
	d.defaultPD = &protectionDomain{device: d, c: pd}
	if err := d.events.start(d); err != nil {
		C.vb_dealloc_pd(pd)
		return err
	}
	return nil
}

// Name implements [verbs.Device].
func (d *device) Name() string { return d.info.Name }

// Driver implements [verbs.Device].
func (d *device) Driver() string { return "ibverbs" }

// DefaultPD implements [verbs.Device].
func (d *device) DefaultPD() verbs.PD { return d.defaultPD }

func (d *device) readAttr() error {
	var a C.struct_ibv_device_attr
	if err := checkErrno("ibv_query_device", d.info.Name, C.vb_query_device(d.ctx, &a)); err != nil {
		return err
	}
	d.attr = verbs.DeviceAttr{
		FirmwareVersion: C.GoString(&a.fw_ver[0]),
		NodeGUID:        d.info.GUID,
		VendorID:        uint32(a.vendor_id),
		MaxMRSize:       uint64(a.max_mr_size),
		MaxQP:           int(a.max_qp), MaxQPWR: int(a.max_qp_wr), MaxSGE: int(a.max_sge),
		MaxCQ: int(a.max_cq), MaxCQE: int(a.max_cqe),
		MaxMR: int(a.max_mr), MaxPD: int(a.max_pd),
		MaxSRQ: int(a.max_srq), MaxSRQWR: int(a.max_srq_wr), MaxSRQSGE: int(a.max_srq_sge),
		MaxAH:              int(a.max_ah),
		MaxMulticastGroups: int(a.max_mcast_grp),
		MaxMulticastQPs:    int(a.max_mcast_qp_attach),
		MaxQPReadAtomic:    int(a.max_qp_rd_atom),
		MaxInitReadAtomic:  int(a.max_qp_init_rd_atom),
		Ports:              int(a.phys_port_cnt),
		Atomics:            a.atomic_cap != C.IBV_ATOMIC_NONE,
		AtomicsGlobal:      a.atomic_cap == C.IBV_ATOMIC_GLOB,
		Invalidation:       a.device_cap_flags&C.IBV_DEVICE_MEM_MGT_EXTENSIONS != 0,
		NUMANode:           numaNode(d.sysfs),
	}
	if a.max_mw > 0 {
		d.attr.MaxMW = int(a.max_mw)
		d.attr.MWTypes = windowTypes(uint32(a.device_cap_flags))
	}
	switch d.ctx.device.transport_type {
	case C.IBV_TRANSPORT_IB:
		d.attr.Transports = verbs.TransportSet(verbs.RC, verbs.UC, verbs.UD)
	case C.IBV_TRANSPORT_IWARP:
		// iWARP has no GIDs to connect by, and its RC differs from that of package verbs.
	default:
		d.attr.Transports = verbs.TransportSet(verbs.UD)
	}
	for port := 1; port <= d.attr.Ports; port++ {
		p, err := d.portAttr(port)
		if err != nil {
			return err
		}
		if port == 1 {
			d.attr.MaxMessage = uint32(p.max_msg_sz)
		}
		d.lids = d.lids || p.link_layer == C.IBV_LINK_LAYER_INFINIBAND
	}
	if a.vendor_id == efa.VendorID {
		d.openEFA(int(a.max_sge_rd))
	}
	d.readClock()
	return nil
}

// Query implements [verbs.Device]. No verb reports MaxInline: the first call finds it by
// creating a few queue pairs.
func (d *device) Query() (verbs.DeviceAttr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil {
		return verbs.DeviceAttr{}, d.closedError("query")
	}
	d.probe.Do(func() { d.inline = d.probeInline() })
	attr := d.attr
	attr.MaxInline = d.inline
	attr.CompletionFields = d.completionFields()
	return attr, nil
}

// probeInline finds the most inline data that a queue pair can be made with.
func (d *device) probeInline() int {
	cq, _ := C.vb_create_cq(d.ctx, 1, nil, 0)
	if cq == nil {
		return 0
	}
	defer C.vb_destroy_cq(cq)
	service := C.enum_ibv_qp_type(C.IBV_QPT_RC)
	if !d.attr.Transports.Has(verbs.RC) {
		service = C.IBV_QPT_UD
	}
	possible := func(n int) bool {
		var init C.struct_ibv_qp_init_attr
		init.send_cq, init.recv_cq, init.qp_type = cq, cq, service
		init.cap = C.struct_ibv_qp_cap{max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: C.uint32_t(n)}
		qp := C.vb_create_qp(d.defaultPD.c, &init)
		if qp != nil {
			C.vb_destroy_qp(qp)
		}
		return qp != nil
	}
	const granularity = 4
	low, high := 0, 4096 // low is possible, high is not known yet
	if possible(high) {
		return high
	}
	for high-low > granularity {
		if middle := (low + high) / 2 &^ (granularity - 1); possible(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

func (d *device) checkPort(port int) error {
	if port < 1 || port > d.attr.Ports {
		return fmt.Errorf("port %d of %s does not exist; the ports are 1 to %d: %w", port, d.info.Name, d.attr.Ports, verbs.ErrInvalid)
	}
	return nil
}

// portAttr queries a port. The caller holds the lock, or is the only user of the device.
func (d *device) portAttr(port int) (a C.struct_ibv_port_attr, err error) {
	if err := d.checkPort(port); err != nil {
		return a, err
	}
	asked := fmt.Sprintf("port %d of %s", port, d.info.Name)
	return a, checkErrno("ibv_query_port", asked, C.vb_query_port(d.ctx, C.int(port), &a))
}

// QueryPort implements [verbs.Device].
func (d *device) QueryPort(port int) (verbs.PortAttr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil {
		return verbs.PortAttr{}, d.closedError("query port")
	}
	a, err := d.portAttr(port)
	if err != nil {
		return verbs.PortAttr{}, err
	}
	return verbs.PortAttr{
		State: verbs.PortState(a.state), LinkLayer: verbs.LinkLayer(a.link_layer),
		MaxMTU: abi.MTU(uint32(a.max_mtu)), ActiveMTU: abi.MTU(uint32(a.active_mtu)),
		GIDTable: int(a.gid_tbl_len), LID: uint16(a.lid),
		Interface:  interfaceOf(d.sysfs, port),
		ActiveRate: uint64(laneWidth(a.active_width)) * laneRate(a.active_speed),
	}, nil
}

// onInfiniBand reports whether packets of a port have LIDs. It returns false if the query of the
// port fails, so the LIDs are not read.
func (d *device) onInfiniBand(port int) bool {
	p, err := d.QueryPort(port)
	return err == nil && p.LinkLayer == verbs.LinkInfiniBand
}

// laneWidth and laneRate decode the width and speed of a port's link (IBTA 14.2.5.6:
// LinkWidthActive, LinkSpeedActive and their extensions). They return zero for unknown codes.
func laneWidth(code C.uint8_t) int {
	return map[C.uint8_t]int{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[code]
}

func laneRate(code C.uint8_t) uint64 {
	const mega = 1e6
	return map[C.uint8_t]uint64{
		1: 2500 * mega, 2: 5000 * mega, 4: 10000 * mega, 8: 10000 * mega,
		16: 14000 * mega, 32: 25000 * mega, 64: 50000 * mega, 128: 100000 * mega,
	}[code]
}

// GIDs implements [verbs.Device].
func (d *device) GIDs(port int) ([]verbs.GIDEntry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil {
		return nil, d.closedError("read GID table")
	}
	return d.gids(port)
}

func (d *device) gids(port int) ([]verbs.GIDEntry, error) {
	if err := d.checkPort(port); err != nil {
		return nil, err
	}
	// The call returns the entries of all ports, and needs room for all of them.
	total := 0
	for p := 1; p <= d.attr.Ports; p++ {
		a, err := d.portAttr(p)
		if err != nil {
			return nil, err
		}
		total += int(a.gid_tbl_len)
	}
	if total == 0 {
		return nil, nil
	}
	table := make([]C.struct_ibv_gid_entry, total)
	n, err := C.vb_query_gid_table(d.ctx, &table[0], C.size_t(total))
	if n < 0 {
		if err == nil {
			err = errnoOf(int(-n))
		}
		return nil, verbError("ibv_query_gid_table", d.info.Name, err)
	}
	var entries []verbs.GIDEntry
	for i := range table[:n] {
		e := &table[i]
		gid := verbs.GID(*(*[16]byte)(unsafe.Pointer(&e.gid)))
		if int(e.port_num) != port || gid == (verbs.GID{}) {
			continue
		}
		entry := verbs.GIDEntry{Index: int(e.gid_index), GID: gid, Type: verbs.GIDType(e.gid_type)}
		if entry.Type == verbs.GIDRoCEv2 {
			entry.UDPPort = roceV2Port
		}
		entry.Interface = interfaceName(e.ndev_ifindex)
		entries = append(entries, entry)
	}
	return entries, nil
}

// interfaceName returns an empty name for an unknown index, such as one of another
// network namespace.
func interfaceName(index C.uint32_t) string {
	var name [C.IF_NAMESIZE]C.char
	if index == 0 || C.if_indextoname(C.uint(index), &name[0]) == nil {
		return ""
	}
	return C.GoString(&name[0])
}

// Counters implements [verbs.Device]. It returns the counters of the device, and then
// those of its ports.
func (d *device) Counters() ([]verbs.Counter, error) {
	d.mu.Lock()
	closed := d.ctx == nil
	d.mu.Unlock()
	if closed {
		return nil, d.closedError("read counters")
	}
	list := readCounters(nil, filepath.Join(d.sysfs, "hw_counters"), 0)
	for port := 1; port <= d.attr.Ports; port++ {
		for _, folder := range []string{"hw_counters", "counters"} {
			list = readCounters(list, filepath.Join(d.sysfs, "ports", strconv.Itoa(port), folder), port)
		}
	}
	return list, nil
}

// closedError is the error of calls on a closed device.
func (d *device) closedError(op string) error {
	return fmt.Errorf("%s: device %s: %w", op, d.info.Name, verbs.ErrClosed)
}

// Close implements [verbs.Device].
func (d *device) Close() error {
	d.mu.Lock()
	if d.ctx == nil {
		d.mu.Unlock()
		return nil
	}
	err := d.queuesInUse()
	d.mu.Unlock()
	if err != nil {
		return err
	}
	if err := d.closers.Close(); err != nil {
		return fmt.Errorf("close device %s: %w", d.info.Name, err)
	}
	d.mu.Lock()
	if d.ctx == nil {
		d.mu.Unlock()
		return nil
	}
	if err = d.queuesInUse(); err == nil && d.defaultPD.refs > 0 {
		err = d.notClosed(d.defaultPD.refs, "objects of the default protection domain")
	}
	if err != nil {
		d.mu.Unlock()
		return err
	}
	ctx := d.ctx
	d.ctx = nil
	d.mu.Unlock()

	d.events.stop()
	return errors.Join(
		checkDestroyed(ctx, "ibv_dealloc_pd", "the default protection domain of "+d.info.Name, C.vb_dealloc_pd(d.defaultPD.c)),
		checkErrno("ibv_close_device", d.info.Name, C.vb_close_device(ctx)),
	)
}

// OnClose implements verbs.ClosingDevice.
func (d *device) OnClose(f func() error) (remove func()) { return d.closers.Add(f) }

// queuesInUse returns an error if objects are left through which the device may still access
// memory.
func (d *device) queuesInUse() error {
	switch {
	case len(d.pairs) > 0:
		return d.notClosed(len(d.pairs), "queue pairs")
	case d.domains > 0:
		return d.notClosed(d.domains, "protection domains")
	case len(d.queues) > 0:
		return d.notClosed(len(d.queues), "completion queues")
	case d.managers > 0:
		return d.notClosed(d.managers, "connection managers")
	}
	return nil
}

func (d *device) notClosed(n int, what string) error {
	return fmt.Errorf("close device %s: %d %s are not closed: %w", d.info.Name, n, what, verbs.ErrInUse)
}
