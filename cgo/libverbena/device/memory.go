//go:build linux && cgo && verbs

package main

// #include "device.h"
import "C"

import (
	"fmt"
	"math"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/cgo/internal/abi"
	"github.com/verbena-rdma/verbena/internal/cverbs"
	"github.com/verbena-rdma/verbena/verbs"
)

type domain struct {
	cverbs.PD
	context *deviceContext
}

func (p *domain) close() error          { return p.Close() }
func (p *domain) owner() *deviceContext { return p.context }

type region struct {
	cverbs.MR
	context *deviceContext
}

func (m *region) close() error          { return m.Close() }
func (m *region) owner() *deviceContext { return m.context }

type window struct {
	verbs.MW
	context *deviceContext
}

func (w *window) close() error          { return w.Close() }
func (w *window) owner() *deviceContext { return w.context }

var (
	domains table[domain]
	regions table[region]
	windows table[window]
)

// register gives an object its handle. If there is none, it closes the object.
func register[T any, P closer[T]](kind C.enum_vd_kind, in *table[T], object P, to *C.uint32_t) C.int {
	handle := in.add(object)
	if handle == 0 {
		_ = object.close()
		return errnoOf(fmt.Errorf("the process has too many objects: %w", verbs.ErrLimit))
	}
	object.owner().add(kind, handle)
	*to = C.uint32_t(handle)
	return 0
}

//export vd_alloc_pd
func vd_alloc_pd(handle C.uint32_t, to *C.uint32_t) C.int {
	c := contexts.get(uint32(handle))
	if c == nil {
		return noSuch
	}
	p, err := c.device.AllocPD()
	if err != nil {
		return errnoOf(err)
	}
	return register(C.VD_PD, &domains, &domain{p.(cverbs.PD), c}, to)
}

// ignoredAccess are flags that say how memory could be registered faster.
const ignoredAccess = C.IBV_ACCESS_HUGETLB | C.IBV_ACCESS_OPTIONAL_RANGE

// accessOf converts the access flags of a memory region.
func accessOf(flags C.uint32_t) (a verbs.Access, onDemand bool, err error) {
	a = abi.Access(uint32(flags)) &^ (verbs.AccessZeroBased | verbs.AccessRelaxedOrdering)
	if unknown := uint32(flags) &^ (abi.AccessFlags(a) | ignoredAccess | C.IBV_ACCESS_ZERO_BASED | C.IBV_ACCESS_ON_DEMAND); unknown != 0 {
		return 0, false, fmt.Errorf("register memory with the access flags %#x: software devices do not have %#x: %w", uint32(flags), unknown, verbs.ErrNotSupported)
	}
	return a, flags&C.IBV_ACCESS_ON_DEMAND != 0, nil
}

func (m *region) describe(to *C.struct_vd_new_object) {
	to.number, to.rkey = C.uint32_t(m.LKey()), C.uint32_t(m.RKey())
}

// lowest is the first address that can be registered. Faults below it are those of nil to Go, which does
// not say where they were.
const lowest = 4096

// highest is the end of a process's memory. Beyond it, faults do not say where they were.
func highest() uintptr {
	if runtime.GOARCH == "amd64" {
		return 1 << 47
	}
	return 1 << 48
}

// memory returns the bytes that a program wants to register.
func memory(addr unsafe.Pointer, length C.size_t) ([]byte, error) {
	if at, end := uintptr(addr), highest(); at < lowest || at > end || uintptr(length) > end-at {
		return nil, fmt.Errorf("register %d bytes at %p: they are not between %#x and %#x, where programs have memory: %w", length, addr, lowest, end, verbs.ErrInvalid)
	}
	return unsafe.Slice((*byte)(addr), int(length)), nil
}

//export vd_reg_mr
func vd_reg_mr(pd C.uint32_t, addr unsafe.Pointer, length C.size_t, iova C.uint64_t, flags C.uint32_t, made *C.struct_vd_new_object) C.int {
	p := domains.get(uint32(pd))
	if p == nil {
		return noSuch
	}
	access, onDemand, err := accessOf(flags)
	if err != nil {
		return errnoOf(err)
	}
	if flags&C.IBV_ACCESS_ZERO_BASED != 0 {
		iova = 0
	}
	if onDemand && addr == nil && length == math.MaxUint64 && iova == 0 { // an implicit region: all memory
		addr, length, iova = unsafe.Add(nil, lowest), C.size_t(highest()-lowest), lowest
	}
	mem, err := memory(addr, length)
	if err != nil {
		return errnoOf(err)
	}
	mr, err := p.RegMRAt(mem, uint64(iova), access, onDemand)
	if err != nil {
		return errnoOf(err)
	}
	m := &region{mr.(cverbs.MR), p.context}
	m.describe(made)
	return register(C.VD_MR, &regions, m, &made.handle)
}

//export vd_rereg_mr
func vd_rereg_mr(mr C.uint32_t, flags C.int, pd C.uint32_t, addr unsafe.Pointer, length C.size_t, access C.uint32_t) C.int {
	m := regions.get(uint32(mr))
	if m == nil {
		return noSuch
	}
	var change cverbs.MRChange
	var err error
	if flags&C.IBV_REREG_MR_CHANGE_PD != 0 {
		p := domains.get(uint32(pd))
		if p == nil {
			return noSuch
		}
		change.PD = p.PD
	}
	if flags&C.IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
		if change.Mem, err = memory(addr, length); err != nil {
			return errnoOf(err)
		}
	}
	if flags&C.IBV_REREG_MR_CHANGE_ACCESS != 0 {
		change.ChangeAccess = true
		if change.Access, change.OnDemand, err = accessOf(access); err != nil {
			return errnoOf(err)
		}
	}
	return errnoOf(m.Reregister(change))
}

//export vd_reg_dmabuf_mr
func vd_reg_dmabuf_mr(pd C.uint32_t, offset C.uint64_t, length C.size_t, iova C.uint64_t, fd C.int, flags C.uint32_t, made *C.struct_vd_new_object) C.int {
	p := domains.get(uint32(pd))
	if p == nil {
		return noSuch
	}
	access, onDemand, err := accessOf(flags)
	if onDemand {
		err = fmt.Errorf("register a dma-buf: it cannot be on demand: %w", verbs.ErrNotSupported)
	}
	if err != nil {
		return errnoOf(err)
	}
	mr, err := p.PD.(verbs.DMABufPD).RegDMABufMR(verbs.DMABuf{
		FD: int(fd), Offset: uint64(offset), Length: uint64(length), IOVA: uint64(iova),
	}, access)
	if err != nil {
		return errnoOf(err)
	}
	m := &region{mr.(cverbs.MR), p.context}
	m.describe(made)
	return register(C.VD_MR, &regions, m, &made.handle)
}

//export vd_advise_mr
func vd_advise_mr(pd C.uint32_t, advice C.int, flags C.uint32_t, list *C.struct_ibv_sge, n C.uint32_t) C.int {
	p := domains.get(uint32(pd))
	switch {
	case p == nil:
		return noSuch
	case flags&^C.IB_UVERBS_ADVISE_MR_FLAG_FLUSH != 0:
		return errnoOf(fmt.Errorf("advise: software devices do not have the flags %#x: %w", flags, verbs.ErrInvalid))
	case list == nil && n > 0:
		return errnoOf(fmt.Errorf("advise: the list of %d entries is NULL: %w", n, syscall.EFAULT))
	}
	if advice < C.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH || advice > C.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT {
		return errnoOf(fmt.Errorf("advise: software devices do not have advice %d: %w", advice, verbs.ErrNotSupported))
	}
	write := advice == C.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE
	wait := flags != 0 && advice != C.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT
	for _, e := range unsafe.Slice(list, n) {
		if err := p.Prefetch(verbs.SGE{Addr: uint64(e.addr), Length: uint32(e.length), LKey: uint32(e.lkey)}, write, wait); err != nil {
			return errnoOf(err)
		}
	}
	return 0
}

//export vd_alloc_mw
func vd_alloc_mw(pd C.uint32_t, kind C.int, made *C.struct_vd_new_object) C.int {
	p := domains.get(uint32(pd))
	if p == nil {
		return noSuch
	}
	mw, err := p.PD.(verbs.WindowPD).AllocMW(verbs.MWType(kind))
	if err != nil {
		return errnoOf(err)
	}
	made.rkey = C.uint32_t(mw.RKey())
	return register(C.VD_MW, &windows, &window{mw, p.context}, &made.handle)
}

//export vd_mw_key
func vd_mw_key(mw C.uint32_t, rkey *C.uint32_t) C.int {
	w := windows.get(uint32(mw))
	if w == nil {
		return noSuch
	}
	*rkey = C.uint32_t(w.RKey())
	return 0
}
