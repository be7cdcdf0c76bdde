//go:build linux && cgo && verbs

package main

// #cgo LDFLAGS: -Wl,--wrap=mmap -Wl,--wrap=munmap -Wl,--wrap=pthread_create
//
// #include <stdlib.h>
// #include "device.h"
// #include "callbacks.h"
import "C"

import (
	"cmp"
	"encoding/binary"
	"math"
	"net"
	"sync"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/cgo/internal/abi"
	"github.com/verbena-rdma/verbena/internal/sysfs"
	"github.com/verbena-rdma/verbena/verbs"
)

// deviceContext is a device as one ibv_open_device has opened it.
type deviceContext struct {
	device *openDevice
	name   string
	cancel func() // of the subscription to events
	c      unsafe.Pointer
	wait   eventWait

	mu sync.Mutex
	// What is on the context, for events and for close.
	objects   map[object]struct{}
	byNumber  map[uint32][]*queuePair
	queues    map[verbs.CQ]*completionQueue
	receivers map[verbs.SRQ]*sharedReceiveQueue
}

type object struct {
	kind   C.enum_vd_kind
	handle uint32
}

var contexts table[deviceContext]

//export vd_start
func vd_start(callbacks *C.struct_vd_callbacks) {
	C.vd_set_callbacks(callbacks)
	// The runtime's poller opens its files now. Where there are none left, it ends the process.
	time.AfterFunc(time.Hour, func() {}).Stop()
}

//export vd_enter
func vd_enter() {}

//export vd_open
func vd_open(name *C.char, context unsafe.Pointer, handle *C.uint32_t) C.int {
	d, err := openNamed(C.GoString(name), C.GoString(name))
	if err != nil {
		return errnoOf(err)
	}
	c := &deviceContext{
		wait:   newEventWait(),
		device: d, name: C.GoString(name), c: context, objects: make(map[object]struct{}),
		byNumber: make(map[uint32][]*queuePair), queues: make(map[verbs.CQ]*completionQueue),
		receivers: make(map[verbs.SRQ]*sharedReceiveQueue),
	}
	if *handle = C.uint32_t(contexts.add(c)); *handle == 0 {
		return errnoOf(verbs.ErrLimit)
	}
	c.cancel = d.SubscribeEvents(c.event)
	return 0
}

// eventTypes are the events of libibverbs.
var eventTypes = map[verbs.EventType]C.int{
	verbs.EventCQError: C.IBV_EVENT_CQ_ERR, verbs.EventQPFatal: C.IBV_EVENT_QP_FATAL,
	verbs.EventQPRequestError: C.IBV_EVENT_QP_REQ_ERR, verbs.EventQPAccessError: C.IBV_EVENT_QP_ACCESS_ERR,
	verbs.EventCommEstablished: C.IBV_EVENT_COMM_EST, verbs.EventSRQError: C.IBV_EVENT_SRQ_ERR,
	verbs.EventSRQLimitReached: C.IBV_EVENT_SRQ_LIMIT_REACHED, verbs.EventQPLastWQEReached: C.IBV_EVENT_QP_LAST_WQE_REACHED,
	verbs.EventPortActive: C.IBV_EVENT_PORT_ACTIVE, verbs.EventPortError: C.IBV_EVENT_PORT_ERR,
	verbs.EventGIDChange: C.IBV_EVENT_GID_CHANGE, verbs.EventDeviceFatal: C.IBV_EVENT_DEVICE_FATAL,
	verbs.EventLIDChange: C.IBV_EVENT_LID_CHANGE, verbs.EventPKeyChange: C.IBV_EVENT_PKEY_CHANGE,
}

// event passes an event to the C half, if it is of libibverbs, and its object belongs to the
// context.
func (c *deviceContext) event(e verbs.Event) {
	kind, known := eventTypes[e.Type]
	if !known {
		return
	}
	var element unsafe.Pointer
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case e.QPN != 0:
		for _, q := range c.byNumber[e.QPN] {
			C.vd_event(c.c, kind, q.c, C.int(e.Port))
		}
		return
	case e.CQ != nil:
		q := c.queues[e.CQ]
		if q == nil {
			return
		}
		element = q.c
	case e.SRQ != nil:
		q := c.receivers[e.SRQ]
		if q == nil {
			return
		}
		if e.Type == verbs.EventSRQLimitReached {
			q.limit.Store(0)
		}
		element = q.c
	}
	C.vd_event(c.c, kind, element, C.int(e.Port))
}

// add notes an object that is on the context.
func (c *deviceContext) add(kind C.enum_vd_kind, handle uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objects[object{kind, handle}] = struct{}{}
}

// closeOrder is an order in which all objects of a context can be closed.
var closeOrder = []C.enum_vd_kind{C.VD_QP, C.VD_AH, C.VD_MW, C.VD_MR, C.VD_SRQ, C.VD_XRCD, C.VD_CQ, C.VD_PD}

// vd_close closes what the program has left open too, as the kernel does.
//
//export vd_close
func vd_close(handle C.uint32_t) C.int {
	c := contexts.remove(uint32(handle))
	if c == nil {
		return noSuch
	}
	c.cancel()
	for _, kind := range closeOrder {
		c.mu.Lock()
		var list []object
		for o := range c.objects {
			if o.kind == kind {
				list = append(list, o)
			}
		}
		c.mu.Unlock()
		for _, o := range list {
			if q := queuePairs.get(o.handle); kind == C.VD_QP && q != nil {
				q.leaveGroups()
			}
			_ = destroy(o.kind, o.handle) // it logs what fails
		}
	}
	return 0
}

//export vd_destroy
func vd_destroy(kind C.enum_vd_kind, handle C.uint32_t) C.int { return destroy(kind, uint32(handle)) }

func destroy(kind C.enum_vd_kind, handle uint32) C.int {
	switch kind {
	case C.VD_PD:
		return closeObject(kind, &domains, handle)
	case C.VD_MR:
		return closeObject(kind, &regions, handle)
	case C.VD_MW:
		return closeObject(kind, &windows, handle)
	case C.VD_CQ:
		return closeObject(kind, &completionQueues, handle)
	case C.VD_SRQ:
		return closeObject(kind, &sharedReceiveQueues, handle)
	case C.VD_QP:
		return closeObject(kind, &queuePairs, handle)
	case C.VD_XRCD:
		return closeObject(kind, &openXRCDomains, handle)
	case C.VD_AH:
		return closeObject(kind, &addressHandles, handle)
	}
	return noSuch
}

// closer is an object of a context.
type closer[T any] interface {
	*T
	// close closes the object, and ends its events.
	close() error
	owner() *deviceContext
}

// closeObject closes an object and frees its handle.
func closeObject[T any, P closer[T]](kind C.enum_vd_kind, in *table[T], handle uint32) C.int {
	o := P(in.get(handle))
	if o == nil {
		return noSuch
	}
	if err := o.close(); err != nil {
		return errnoOf(err)
	}
	in.remove(handle)
	c := o.owner()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.objects, object{kind, handle})
	return 0
}

// noVendor is the vendor ID of devices that have no manufacturer. Zero would be taken for unknown.
const noVendor = 0xffffff

// deviceAtomicWrite is IB_UVERBS_DEVICE_ATOMIC_WRITE (rdma/ib_user_verbs.h of Linux 6.2).
const deviceAtomicWrite = 1 << 40

func bigEndian(v uint64) (to [8]byte) {
	binary.BigEndian.PutUint64(to[:], v)
	return to
}

//export vd_query_device
func vd_query_device(handle C.uint32_t, to *C.struct_ibv_device_attr_ex) C.int {
	c := contexts.get(uint32(handle))
	if c == nil {
		return noSuch
	}
	a := &c.device.attr
	flags := C.IBV_DEVICE_CURR_QP_STATE_MOD | C.IBV_DEVICE_RC_RNR_NAK_GEN | C.IBV_DEVICE_SYS_IMAGE_GUID |
		C.IBV_DEVICE_PORT_ACTIVE_EVENT | C.IBV_DEVICE_MEM_WINDOW | C.IBV_DEVICE_MEM_WINDOW_TYPE_2B | C.IBV_DEVICE_MEM_MGT_EXTENSIONS
	xrc := a.Transports.Has(verbs.XRCSend)
	if xrc {
		flags |= C.IBV_DEVICE_XRC
	}
	o := &to.orig_attr
	copyString(o.fw_ver[:], a.FirmwareVersion)
	*(*[8]byte)(unsafe.Pointer(&o.node_guid)) = bigEndian(a.NodeGUID)
	o.sys_image_guid = o.node_guid
	o.max_mr_size = C.uint64_t(a.MaxMRSize)
	o.page_size_cap = math.MaxUint64 &^ 0xfff
	o.vendor_id = C.uint32_t(cmp.Or(a.VendorID, noVendor))
	o.max_qp, o.max_qp_wr = C.int(a.MaxQP), C.int(a.MaxQPWR)
	o.device_cap_flags = C.uint(flags)
	o.max_sge, o.max_sge_rd = C.int(a.MaxSGE), C.int(a.MaxSGE)
	o.max_cq, o.max_cqe = C.int(a.MaxCQ), C.int(a.MaxCQE)
	o.max_mr, o.max_pd, o.max_mw = C.int(a.MaxMR), C.int(a.MaxPD), C.int(a.MaxMW)
	o.max_qp_rd_atom, o.max_qp_init_rd_atom = C.int(a.MaxQPReadAtomic), C.int(a.MaxInitReadAtomic)
	o.max_res_rd_atom = C.int(a.MaxQPReadAtomic * a.MaxQP)
	o.atomic_cap = C.IBV_ATOMIC_HCA // less than it has, but UCX and others know no other value
	o.max_mcast_grp, o.max_mcast_qp_attach = C.int(a.MaxMulticastGroups), C.int(a.MaxMulticastQPs)
	o.max_total_mcast_qp_attach = C.int(a.MaxMulticastGroups * a.MaxMulticastQPs)
	o.max_ah = C.int(a.MaxAH)
	o.max_srq, o.max_srq_wr, o.max_srq_sge = C.int(a.MaxSRQ), C.int(a.MaxSRQWR), C.int(a.MaxSRQSGE)
	o.max_pkeys, o.local_ca_ack_delay, o.phys_port_cnt = 1, 15, C.uint8_t(a.Ports)
	const messages = C.IBV_ODP_SUPPORT_SEND | C.IBV_ODP_SUPPORT_RECV | C.IBV_ODP_SUPPORT_SRQ_RECV
	to.odp_caps.general_caps = C.IBV_ODP_SUPPORT | C.IBV_ODP_SUPPORT_IMPLICIT
	transports := &to.odp_caps.per_transport_caps
	transports.rc_odp_caps = messages | C.IBV_ODP_SUPPORT_WRITE | C.IBV_ODP_SUPPORT_READ | C.IBV_ODP_SUPPORT_ATOMIC
	if xrc {
		to.xrc_odp_caps = transports.rc_odp_caps
	}
	transports.uc_odp_caps = messages | C.IBV_ODP_SUPPORT_WRITE
	transports.ud_odp_caps = messages
	to.completion_timestamp_mask = math.MaxUint64
	to.hca_core_clock = C.uint64_t(a.ClockFrequency / 1000) // kHz
	to.device_cap_flags_ex = C.uint64_t(flags)
	if a.AtomicWrite {
		to.device_cap_flags_ex |= deviceAtomicWrite
	}
	to.phys_port_cnt_ex = C.uint32_t(a.Ports)
	if c.device.isEFA() {
		describeEFA(o, &a.SRD)
	}
	return 0
}

// What ports report of a link that is up, and whose speed is not known: four lanes of 2.5 Gbit/s
// (IBTA 14.2.5.6).
const (
	linkUp     = 5
	fourLanes  = 2
	singleRate = 1
)

//export vd_query_port
func vd_query_port(handle, port C.uint32_t, to *C.struct_ibv_port_attr) C.int {
	c := contexts.get(uint32(handle))
	if c == nil {
		return noSuch
	}
	a, err := c.device.QueryPort(int(port))
	if err != nil {
		return errnoOf(err)
	}
	*to = C.struct_ibv_port_attr{
		state: C.enum_ibv_port_state(a.State), max_mtu: C.enum_ibv_mtu(abi.MTUCode(a.MaxMTU)),
		active_mtu: C.enum_ibv_mtu(abi.MTUCode(a.ActiveMTU)), gid_tbl_len: C.int(max(a.GIDTable, sysfs.GIDTable)),
		port_cap_flags: C.IBV_PORT_CM_SUP | C.IBV_PORT_IP_BASED_GIDS, max_msg_sz: C.uint32_t(c.device.maxMessage()),
		pkey_tbl_len: 1, lid: C.uint16_t(a.LID), max_vl_num: 1, active_width: fourLanes, active_speed: singleRate,
		phys_state: linkUp, link_layer: C.uint8_t(a.LinkLayer), flags: C.IBV_QPF_GRH_REQUIRED,
	}
	return 0
}

//export vd_query_gids
func vd_query_gids(handle, port C.uint32_t, to *C.struct_ibv_gid_entry, most C.size_t, count *C.size_t) C.int {
	c := contexts.get(uint32(handle))
	if c == nil {
		return noSuch
	}
	entries, err := c.device.GIDs(int(port))
	if err != nil {
		return errnoOf(err)
	}
	*count = C.size_t(len(entries))
	list := unsafe.Slice(to, most)
	for i, e := range entries[:min(len(entries), len(list))] {
		list[i] = C.struct_ibv_gid_entry{gid_index: C.uint32_t(e.Index), port_num: port, gid_type: C.uint32_t(e.Type)}
		*(*verbs.GID)(unsafe.Pointer(&list[i].gid)) = e.GID
		if ifi, err := net.InterfaceByName(e.Interface); err == nil {
			list[i].ndev_ifindex = C.uint32_t(ifi.Index)
		}
	}
	return 0
}
