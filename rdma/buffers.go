package rdma

import (
	"encoding/binary"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

// atomicSize is the width of an atomic, in bytes, and its alignment.
const atomicSize = 8

// measure sets how many bytes a task moves, and checks that they fit.
func (r *request) measure() error {
	if err := r.local.Err(); err != nil {
		return err
	}
	if err := r.remote.Err(); err != nil {
		return err
	}
	switch r.op {
	case OpSyncEventGet, OpSyncEventSet, OpSyncEventAdd:
		r.length = atomicSize
		return nil
	case OpSend, OpSendImm:
		return r.measureSource()
	case OpWrite, OpWriteImm:
		if err := r.measureSource(); err != nil {
			return err
		}
		if r.remote == nil {
			if r.length > 0 {
				return fmt.Errorf("%w: there is no destination for its %d bytes", ErrInvalid, r.length)
			}
			return nil
		}
		return r.checkRemote("destination", r.length)
	case OpRead:
		switch {
		case r.remote == nil && r.local == nil:
			r.length = 0
			return nil
		case r.remote == nil || r.local == nil:
			return fmt.Errorf("%w: it needs a source at the peer and a destination here", ErrInvalid)
		case r.remote.DataLen() == 0:
			return fmt.Errorf("%w: nothing would be read; make it with Source", ErrNoData)
		case r.remote.DataLen() > r.local.ListRoom():
			return fmt.Errorf("%w: the source has %d bytes, the destination room for %d; ResetData empties it",
				ErrRange, r.remote.DataLen(), r.local.ListRoom())
		}
		r.length = r.remote.DataLen()
		return r.checkRemote("source", 0)
	default:
		switch {
		case r.remote == nil:
			return fmt.Errorf("%w: it needs a destination at the peer", ErrInvalid)
		case r.local != nil && r.local.ListRoom() < atomicSize:
			return fmt.Errorf("%w: the result has 8 bytes, its buffer room for %d; ResetData empties it", ErrRange, r.local.ListRoom())
		}
		for b := r.local; b != nil; b = b.Next() {
			if b.Memory() == nil {
				return fmt.Errorf("%w: its result buffer is memory of the peer or of a dma-buf; give memory that this program sees", ErrInvalid)
			}
		}
		r.length = atomicSize
		return r.checkRemote("destination", atomicSize)
	}
}

// measureSource measures a local source. No buffer at all is a message of no
// bytes; a buffer without data is a mistake.
func (r *request) measureSource() error {
	r.length = r.local.ListDataLen()
	if r.local != nil && r.length == 0 {
		return fmt.Errorf("%w: nothing would be moved; make it with Source, or give none for a message of no bytes", ErrNoData)
	}
	return nil
}

// checkRemote checks the side at the peer, which must have room for n bytes.
func (r *request) checkRemote(side string, n int) error {
	switch {
	case !r.remote.Remote():
		return fmt.Errorf("%w: its %s is memory of this host; import the peer's memory map", ErrInvalid, side)
	case r.remote.Next() != nil:
		return fmt.Errorf("%w: its %s is a list; memory of the peer has to be one piece", ErrInvalid, side)
	case r.remote.Room() < n:
		return fmt.Errorf("%w: its %s has room for %d bytes, and %d are to be written; make it with Target",
			ErrRange, side, r.remote.Room(), n)
	}
	return nil
}

// checkLimits checks what the device or the peer would refuse.
func (r *request) checkLimits() error {
	if uint64(r.length) > uint64(r.ctx.set.caps.MaxMessage) {
		return fmt.Errorf("%w: it would move %d bytes, %s moves %d in one task", ErrRange, r.length, r.ctx.dev.Name(), r.ctx.set.caps.MaxMessage)
	}
	if r.op.onEvent() {
		return r.checkEvent(r.event)
	}
	if r.remote != nil {
		need := mmap.RemoteWrite
		switch {
		case r.op == OpRead:
			need = mmap.RemoteRead
		case r.op.atomic():
			need = mmap.RemoteAtomic
		}
		if have := r.remote.Map().Permissions(); !have.Has(need) {
			return fmt.Errorf("%w: the peer's memory map grants %v, and this needs %v", ErrPermission, have, need)
		}
	}
	if r.op.atomic() {
		if addr := r.remote.TailAddr(); addr%atomicSize != 0 {
			return fmt.Errorf("%w: the peer's address %#x is not a multiple of 8", ErrRange, addr)
		}
	}
	_, err := r.gather()
	return err
}

// gather makes the local scatter-gather list, in memory of the task.
func (r *request) gather() ([]verbs.SGE, error) {
	if r.op.onWord() {
		// Through scratch memory, so that the result buffer may have any shape.
		r.sgl[0] = r.ctx.scratchSG
		r.sgl[0].Addr += r.wordOffset()
		return r.sgl, nil
	}
	var list []verbs.SGE
	var err error
	if r.op == OpRead {
		list, err = r.local.AppendRoomSGL(r.sgl[:0], r.ctx.set.PD, r.length)
	} else {
		list, err = r.local.AppendDataSGL(r.sgl[:0], r.ctx.set.PD)
	}
	if err != nil {
		return nil, err
	}
	return list, checkList(list, cap(r.sgl), "MaxSendSGE")
}

func checkList(list []verbs.SGE, most int, field string) error {
	if len(list) > most {
		return fmt.Errorf("%w: its list has %d buffers, the context allows %d; raise Config.%s", ErrRange, len(list), most, field)
	}
	return nil
}

func (r *request) wordOffset() uint64 { return 8 * uint64(r.ctx.set.MaxConnections+r.word) }

// wordBytes is the task's word of the scratch memory.
func (r *request) wordBytes() []byte {
	off := r.wordOffset()
	return r.ctx.scratch.Bytes()[off : off+atomicSize]
}

// takeOriginal takes the result of an atomic, which is in the byte order of the host.
func (r *request) takeOriginal() error {
	result := r.wordBytes()
	r.result = binary.NativeEndian.Uint64(result)
	if r.local == nil {
		return nil
	}
	return r.local.Append(result)
}

// freeAll drops buffers that were handed over in vain.
func freeAll(bufs ...*bufinv.Buf) {
	for _, b := range bufs {
		_ = b.Free() // the error at hand says more
	}
}
