//go:build linux && cgo && verbs

package ibverbs

// #include "verbena_extended.h"
// #include "verbena_ibverbs.h"
import "C"

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/cgo/internal/efa"
	"github.com/verbena-rdma/verbena/verbs"
)

// openEFA adds the transport service SRD to an Amazon device. If that fails, the device has its
// other services, and creating an SRD queue pair returns the reason.
func (d *device) openEFA(readSGE int) {
	own, err := efa.Open(efa.Library, unsafe.Pointer(d.ctx))
	if err != nil {
		d.efaErr = efaError("efadv_query_device", d.info.Name, err)
		return
	}
	d.useEFA(own, readSGE)
}

func (d *device) useEFA(own *efa.Device, readSGE int) {
	d.efa = own
	d.attr.Transports |= verbs.TransportSet(verbs.SRD)
	d.attr.SRD = own.Attr().SRD(d.attr.MaxMessage, readSGE)
	d.attr.CompletionFields |= own.Attr().Fields()
}

// efaError returns the error of a function of libefa.
func efaError(verb, asked string, err error) *Error {
	if missing, ok := errors.AsType[*efa.MissingError](err); ok {
		return &Error{Verb: verb, Request: asked, Kind: verbs.ErrNotSupported, Detail: missing.Error()}
	}
	return verbError(verb, asked, err)
}

// checkService refuses services, and options of them, that the device does not have.
func (d *device) checkService(init *verbs.QPInit) error {
	switch {
	case init.Type == verbs.SRD && d.efaErr != nil:
		return fmt.Errorf("device %s has no transport service SRD: %w", d.info.Name, d.efaErr)
	case init.Type < 0 || !d.attr.Transports.Has(init.Type):
		return fmt.Errorf("device %s has no transport service %v: %w", d.info.Name, init.Type, verbs.ErrNotSupported)
	case init.UnsolicitedWriteRecv && init.Type != verbs.SRD:
		return fmt.Errorf("only SRD queue pairs have UnsolicitedWriteRecv, not %v: %w", init.Type, verbs.ErrInvalid)
	case init.UnsolicitedWriteRecv && !d.attr.SRD.UnsolicitedWriteRecv:
		return fmt.Errorf("device %s has no UnsolicitedWriteRecv: the device and the kernel driver must support it, and libefa of rdma-core 52 or later (Debian: ibverbs-providers): %w", d.info.Name, verbs.ErrNotSupported)
	case init.Type == verbs.SRD && init.SRQ != nil:
		return fmt.Errorf("an SRD queue pair cannot have a shared receive queue: %w", verbs.ErrNotSupported)
	}
	return nil
}

// checkSRD refuses SRD operations that this device does not have.
func (d *device) checkSRD(wr *verbs.SendWR) error {
	switch has := &d.attr.SRD; {
	case wr.Op == verbs.OpRead && !has.Read:
		return fmt.Errorf("device %s has no reads on SRD: %w", d.info.Name, verbs.ErrNotSupported)
	case (wr.Op == verbs.OpWrite || wr.Op == verbs.OpWriteImm) && !has.Write:
		return fmt.Errorf("device %s has no writes on SRD: the device and the kernel driver must support them, and libefa of rdma-core 46 or later (Debian: ibverbs-providers): %w", d.info.Name, verbs.ErrNotSupported)
	}
	return nil
}

func (q *queuePair) createSRD(attr *C.struct_ibv_qp_init_attr_ex) (*C.struct_ibv_qp, error) {
	pair, err := q.pd.device.efa.CreateQP(unsafe.Pointer(attr), q.init.UnsolicitedWriteRecv)
	return (*C.struct_ibv_qp)(pair), err
}

// createEFA makes an EFA's completion queue. Devices without completion events do not accept a
// channel: their queues can only be polled.
func (q *completionQueue) createEFA(attr *C.struct_ibv_cq_init_attr_ex, poller *C.struct_vb_poller, fields verbs.WCFields) error {
	d := q.device
	cq, err := d.efa.CreateCQ(unsafe.Pointer(attr), fields)
	if errors.Is(err, syscall.EOPNOTSUPP) && q.channel != nil {
		attr.channel = nil
		cq, err = d.efa.CreateCQ(unsafe.Pointer(attr), fields)
	}
	if err != nil {
		return efaError("efadv_create_cq", fmt.Sprintf("%d entries with the fields %v on %s", attr.cqe, fields, d.info.Name), err)
	}
	if attr.channel != q.channel {
		C.vb_destroy_comp_channel(q.channel)
		q.channel = nil
	}
	poller.cq = (*C.struct_ibv_cq_ex)(cq.Queue)
	poller.provider = cq.Provider
	poller.read_sgid = (*[0]byte)(cq.ReadSGID)
	poller.is_unsolicited = (*[0]byte)(cq.IsUnsolicited)
	if fields&verbs.WCSource != 0 {
		poller.source = 1
	}
	return nil
}

// handleNumber returns the number by which receive completions name an address handle.
func (d *device) handleNumber(ah *C.struct_ibv_ah) (uint16, error) {
	number, err := d.efa.HandleNumber(unsafe.Pointer(ah))
	if err != nil {
		return 0, efaError("efadv_query_ah", "an address handle of "+d.info.Name, err)
	}
	return number, nil
}
