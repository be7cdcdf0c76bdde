//go:build linux && cgo && verbs

package ibverbs

// #include "verbena_ibverbs.h"
import "C"

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/cgo/internal/abi"
	"github.com/verbena-rdma/verbena/internal/rules"
	"github.com/verbena-rdma/verbena/verbs"
)

var _ verbs.WindowPD = (*protectionDomain)(nil)

// windowTypes returns the window types in device_cap_flags. Verbs do not distinguish 2A
// and 2B.
func windowTypes(flags uint32) verbs.MWTypes {
	var types verbs.MWTypes
	if flags&C.IBV_DEVICE_MEM_WINDOW != 0 {
		types |= verbs.MWTypeSet(verbs.MWType1)
	}
	if flags&(C.IBV_DEVICE_MEM_WINDOW_TYPE_2A|C.IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0 {
		types |= verbs.MWTypeSet(verbs.MWType2)
	}
	return types
}

type memoryWindow struct {
	pd   *protectionDomain
	t    verbs.MWType
	rkey atomic.Uint32
	c    *C.struct_ibv_mw // nil when closed; guarded by the device's handles
}

// AllocMW implements [verbs.WindowPD].
func (p *protectionDomain) AllocMW(t verbs.MWType) (verbs.MW, error) {
	const op = "allocate memory window"
	d := p.device
	if !d.attr.MWTypes.Has(t) {
		return nil, fmt.Errorf("%s: device %s has no memory windows of type %d: %w", op, d.info.Name, t, verbs.ErrNotSupported)
	}
	if err := p.use(op); err != nil {
		return nil, err
	}
	kind := C.int(C.IBV_MW_TYPE_1)
	if t == verbs.MWType2 {
		kind = C.IBV_MW_TYPE_2
	}
	c, err := C.vb_alloc_mw(p.c, kind)
	if c == nil {
		p.release()
		return nil, verbError("ibv_alloc_mw", fmt.Sprintf("type %d on %s", t, d.info.Name), err)
	}
	w := &memoryWindow{pd: p, t: t, c: c}
	w.rkey.Store(uint32(c.rkey))
	return w, nil
}

func (w *memoryWindow) Type() verbs.MWType { return w.t }
func (w *memoryWindow) RKey() uint32       { return w.rkey.Load() }

// Close implements [verbs.MW].
func (w *memoryWindow) Close() error {
	d := w.pd.device
	d.handles.Lock()
	defer d.handles.Unlock()
	if w.c == nil {
		return nil
	}
	if err := d.checkDestroyed("ibv_dealloc_mw", "a memory window of "+d.info.Name, C.vb_dealloc_mw(w.c)); err != nil {
		return err
	}
	w.c = nil
	w.pd.release()
	return nil
}

// haveBind reports whether one of the requests is a bind.
func haveBind(wrs []verbs.SendWR) bool {
	for i := range wrs {
		if wrs[i].Op == verbs.OpBindMW {
			return true
		}
	}
	return false
}

// recordBinds stores the keys of posted binds in their windows, and in libibverbs' windows:
// libibverbs leaves that to its callers, and uses the key in the next bind.
func recordBinds(wrs []verbs.SendWR) {
	for i := range wrs {
		if wr := &wrs[i]; wr.Op == verbs.OpBindMW {
			w := wr.Bind.MW.(*memoryWindow)
			w.rkey.Store(wr.Bind.RKey)
			atomic.StoreUint32((*uint32)(&w.c.rkey), wr.Bind.RKey)
		}
	}
}

func (d *device) checkInvalidation() error {
	if !d.attr.Invalidation {
		return fmt.Errorf("device %s has no invalidation: %w", d.info.Name, verbs.ErrNotSupported)
	}
	return nil
}

// binding has the objects of a bind.
type binding struct {
	mw *memoryWindow
	mr *C.struct_ibv_mr
}

// binding checks and returns the objects of a bind. The device's handles are locked.
func (p *protectionDomain) binding(wr *verbs.SendWR) (b binding, err error) {
	if err := rules.CheckBind(wr.Bind); err != nil {
		return b, err
	}
	if len(wr.SGL) > 0 || wr.Flags&(verbs.FlagInline|verbs.FlagSolicited) != 0 {
		return b, fmt.Errorf("a bind moves no data, and must have neither scatter-gather entries nor FlagInline or FlagSolicited: %w", verbs.ErrInvalid)
	}
	d := p.device
	var ok bool
	if b.mw, ok = wr.Bind.MW.(*memoryWindow); !ok || b.mw.pd.device != d {
		return b, fmt.Errorf("the memory window must belong to device %s: %w", d.info.Name, verbs.ErrInvalid)
	}
	if b.mw.c == nil {
		return b, fmt.Errorf("the memory window: %w", verbs.ErrClosed)
	}
	if err := rules.CheckWindowKey(wr.Bind, b.mw.RKey()); err != nil {
		return b, err
	}
	mr, ok := wr.Bind.MR.(*memoryRegion)
	if !ok || mr.pd.device != d {
		return b, fmt.Errorf("the memory region must belong to device %s: %w", d.info.Name, verbs.ErrInvalid)
	}
	if b.mr = mr.c; b.mr == nil {
		return b, fmt.Errorf("the memory region: %w", verbs.ErrClosed)
	}
	return b, nil
}

func (b *binding) args(from *verbs.MWBind) abi.BindArgs {
	return abi.BindArgs{
		MW: unsafe.Pointer(b.mw.c), RKey: from.RKey, MR: unsafe.Pointer(b.mr), Addr: from.Addr, Length: from.Length,
		Access: abi.AccessFlags(from.Access),
	}
}

// bindType1 binds a type 1 window, which has a verb of its own.
func (q *queuePair) bindType1(wr *verbs.SendWR) error {
	b, err := q.pd.binding(wr)
	if err != nil {
		return err
	}
	errno := syscall.Errno(C.vb_bind_mw(q.c, b.mw.c, C.uint64_t(wr.ID), sendFlagsOf[wr.Flags&allSendFlags], b.mr,
		C.uint64_t(wr.Bind.Addr), C.uint64_t(wr.Bind.Length), C.uint(abi.AccessFlags(wr.Bind.Access))))
	if errno != 0 {
		_, err := postResult("ibv_bind_mw", C.int64_t(errno), 1)
		return err
	}
	b.mw.rkey.Store(uint32(b.mw.c.rkey))
	return nil
}
