//go:build linux && cgo && verbs

package efa

// #cgo CFLAGS: -O2 -Wall
// #cgo LDFLAGS: -ldl
// #include "verbena_efa.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"sync"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/verbs"
)

// library is the loaded libefa.
type library struct {
	file string
	c    *C.struct_vb_efa // in C memory, for as long as the program runs
}

// Library is the file of libefa.
const Library = "libefa.so.1"

// loaded holds the libraries that are loaded, by file.
var loaded struct {
	sync.Mutex
	libraries map[string]*library
}

func load(file string) (*library, error) {
	loaded.Lock()
	defer loaded.Unlock()
	if l := loaded.libraries[file]; l != nil {
		return l, nil
	}
	l := &library{file: file, c: (*C.struct_vb_efa)(C.calloc(1, C.sizeof_struct_vb_efa))}
	name := C.CString(file)
	defer C.free(unsafe.Pointer(name))
	var message [512]C.char
	if C.vb_efa_load(name, l.c, &message[0], C.size_t(len(message))) != nil {
		C.free(unsafe.Pointer(l.c))
		return nil, &MissingError{Library: file, Why: C.GoString(&message[0])}
	}
	if loaded.libraries == nil {
		loaded.libraries = make(map[string]*library)
	}
	loaded.libraries[file] = l
	return l, nil
}

// require returns an error if the library lacks one of the functions.
func (l *library) require(functions ...string) error {
	for _, f := range functions {
		name := C.CString(f)
		var has C.bool
		since := C.vb_efa_since(l.c, name, &has)
		C.free(unsafe.Pointer(name))
		if !has {
			return &MissingError{Library: l.file, Function: f, Since: int(since)}
		}
	}
	return nil
}

// Device is an EFA.
type Device struct {
	lib  *library
	ctx  *C.struct_ibv_context
	attr Attr
}

// Open queries the EFA attributes of a device, a struct ibv_context, with the library in a file. The
// error is a *MissingError, or a syscall.Errno: EOPNOTSUPP if the device is not an EFA.
func Open(file string, context unsafe.Pointer) (*Device, error) {
	l, err := load(file)
	if err != nil {
		return nil, err
	}
	if err := l.require("efadv_query_device", "efadv_create_qp_ex", "efadv_query_ah"); err != nil {
		return nil, err
	}
	d := &Device{lib: l, ctx: (*C.struct_ibv_context)(context)}
	var a C.struct_vb_efa_device_attr
	if errno := C.vb_efa_query_device(l.c, d.ctx, &a); errno != 0 {
		return nil, syscall.Errno(errno)
	}
	d.attr = Attr{
		MaxSendWR: int(a.max_sq_wr), MaxRecvWR: int(a.max_rq_wr),
		MaxSendSGE: int(a.max_sq_sge), MaxRecvSGE: int(a.max_rq_sge),
		MaxInline: int(a.inline_buf_size), MaxRDMA: uint32(a.max_rdma_size), Caps: Caps(a.device_caps),
		ExtendedCQ: l.require("efadv_create_cq", "efadv_cq_from_ibv_cq_ex") == nil,
	}
	return d, nil
}

// Attr returns the attributes of the device.
func (d *Device) Attr() *Attr { return &d.attr }

// CreateQP makes an SRD queue pair from a struct ibv_qp_init_attr_ex, and returns a struct
// ibv_qp. It sets qp_type itself.
func (d *Device) CreateQP(init unsafe.Pointer, unsolicitedWriteRecv bool) (unsafe.Pointer, error) {
	attr := (*C.struct_ibv_qp_init_attr_ex)(init)
	attr.qp_type = C.IBV_QPT_DRIVER
	flags := C.uint16_t(0)
	if unsolicitedWriteRecv {
		flags = C.VB_EFA_QP_UNSOLICITED_WRITE_RECV
	}
	qp, err := C.vb_efa_create_qp(d.lib.c, d.ctx, attr, flags)
	if qp == nil {
		return nil, errnoOf(err)
	}
	return unsafe.Pointer(qp), nil
}

// CQ is a completion queue of libefa.
type CQ struct {
	Queue unsafe.Pointer // a struct ibv_cq_ex
	// Provider is the first argument of ReadSGID, which is an
	// int (*)(void *, union ibv_gid *), and of IsUnsolicited, an int (*)(void *). A
	// function is nil if the queue does not have its field.
	Provider, ReadSGID, IsUnsolicited unsafe.Pointer
}

// CreateCQ makes a completion queue from a struct ibv_cq_init_attr_ex. The queue marks
// unsolicited completions if the device has any.
func (d *Device) CreateCQ(init unsafe.Pointer, fields verbs.WCFields) (CQ, error) {
	var flags C.uint64_t
	var cq CQ
	if fields&verbs.WCSource != 0 && d.attr.Caps&CapSourceGID != 0 {
		flags |= C.VB_EFA_WC_SGID
		cq.ReadSGID = C.vb_efa_read_sgid
	}
	if d.attr.Caps&CapUnsolicitedWriteRecv != 0 {
		flags |= C.VB_EFA_WC_IS_UNSOLICITED
		cq.IsUnsolicited = C.vb_efa_is_unsolicited
	}
	c, err := C.vb_efa_create_cq(d.lib.c, d.ctx, (*C.struct_ibv_cq_init_attr_ex)(init), flags)
	if c == nil {
		return CQ{}, errnoOf(err)
	}
	cq.Queue, cq.Provider = unsafe.Pointer(c), unsafe.Pointer(C.vb_efa_cq_of(d.lib.c, c))
	return cq, nil
}

// HandleNumber returns the number of an address handle, a struct ibv_ah.
func (d *Device) HandleNumber(ah unsafe.Pointer) (uint16, error) {
	var number C.uint16_t
	if errno := C.vb_efa_query_ah(d.lib.c, (*C.struct_ibv_ah)(ah), &number); errno != 0 {
		return 0, syscall.Errno(errno)
	}
	return uint16(number), nil
}

// errnoOf returns the errno of a failed call.
func errnoOf(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return syscall.EIO
}
