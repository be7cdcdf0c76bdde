//go:build linux && cgo && verbs

package ibverbs

// #include "verbena_ibverbs.h"
import "C"

import (
	"fmt"
	"math"
	"syscall"

	"github.com/verbena-rdma/verbena/cgo/internal/abi"
	"github.com/verbena-rdma/verbena/internal/rules"
	"github.com/verbena-rdma/verbena/verbs"
)

var _ verbs.DMABufPD = (*protectionDomain)(nil)

// RegDMABufMR implements [verbs.DMABufPD].
func (p *protectionDomain) RegDMABufMR(buf verbs.DMABuf, access verbs.Access) (verbs.MR, error) {
	if err := rules.CheckDMABuf(buf, access); err != nil {
		return nil, err
	}
	if buf.FD < 0 || buf.FD > math.MaxInt32 {
		return nil, fmt.Errorf("register dma-buf: %d is not a file descriptor: %w", buf.FD, verbs.ErrInvalid)
	}
	if err := p.use("register dma-buf"); err != nil {
		return nil, err
	}
	c, err := C.vb_reg_dmabuf_mr(p.c, C.uint64_t(buf.Offset), C.size_t(buf.Length), C.uint64_t(buf.IOVA), C.int(buf.FD), C.uint(abi.AccessFlags(access)))
	if c == nil {
		p.release()
		return nil, explainDMABuf(verbError("ibv_reg_dmabuf_mr",
			fmt.Sprintf("%d bytes from offset %d of the dma-buf of file descriptor %d on %s", buf.Length, buf.Offset, buf.FD, p.device.info.Name), err))
	}
	return &memoryRegion{pd: p, c: c, addr: buf.IOVA, length: buf.Length, access: access, lkey: uint32(c.lkey), rkey: uint32(c.rkey)}, nil
}

func explainDMABuf(e *Error) error {
	switch e.Errno {
	case syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.EPROTONOSUPPORT:
		e.Detail = "the device's driver does not support dma-bufs in the kernel (Linux 5.12 or later) or in libibverbs (rdma-core 34 or later): copy the data through host memory"
	case syscall.EBADF, syscall.EINVAL:
		e.Kind, e.Detail = verbs.ErrInvalid, "check that the file is a dma-buf and contains these bytes"
	}
	return e
}
