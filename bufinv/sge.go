package bufinv

import (
	"fmt"
	"math"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

// AppendDataSGL appends scatter-gather entries for the data from b to the end of its list to
// dst, with the keys of the protection domain pd. It skips elements without data. The errors
// are those of Err and of mmap's LKey, and ErrRange for an element with more data than an
// entry holds (2^32-1 bytes). On an error, it returns dst unchanged.
func (s forFriends) AppendDataSGL(dst []verbs.SGE, pd verbs.PD) ([]verbs.SGE, error) {
	b := s.Buf
	if err := b.Err(); err != nil {
		return dst, err
	}
	out := dst
	var err error
	for e := b; e != nil; e = e.next {
		if out, err = e.appendSGE(out, pd, e.DataAddr(), e.dataLen); err != nil {
			return dst, err
		}
	}
	return out, nil
}

// AppendRoomSGL is AppendDataSGL for the room, where a device writes: for its first limit
// bytes, or for all of it if limit is negative. An element in a Map without LocalReadWrite is
// an error that matches mmap.ErrPermission.
func (s forFriends) AppendRoomSGL(dst []verbs.SGE, pd verbs.PD, limit int) ([]verbs.SGE, error) {
	b := s.Buf
	return b.appendRoom(dst, pd, limit, false)
}

// AppendEmptiedSGL is AppendRoomSGL for the room that there would be after Empty.
func (s forFriends) AppendEmptiedSGL(dst []verbs.SGE, pd verbs.PD, limit int) ([]verbs.SGE, error) {
	b := s.Buf
	return b.appendRoom(dst, pd, limit, true)
}

// appendRoom appends entries for the room or, with emptied, for data and room.
func (b *Buf) appendRoom(dst []verbs.SGE, pd verbs.PD, limit int, emptied bool) ([]verbs.SGE, error) {
	if err := b.Err(); err != nil {
		return dst, err
	}
	if limit < 0 {
		limit = math.MaxInt
	}
	out := dst
	for e := b; e != nil && limit > 0; e = e.next {
		addr, n := e.TailAddr(), e.room()
		if emptied {
			addr, n = e.DataAddr(), e.size-e.dataOff
		}
		n = min(n, limit)
		limit -= n
		var err error
		if n > 0 {
			err = e.writable()
		}
		if err != nil {
			return dst, err
		}
		if out, err = e.appendSGE(out, pd, addr, n); err != nil {
			return dst, err
		}
	}
	return out, nil
}

// writable fails for memory of this host that devices may only read.
func (b *Buf) writable() error {
	if b.m.Remote() || b.m.Permissions().Has(mmap.LocalReadWrite) {
		return nil
	}
	return fmt.Errorf("write to buffer: %w: its memory map has %v; make it with LocalReadWrite", mmap.ErrPermission, b.m.Permissions())
}

func (b *Buf) appendSGE(dst []verbs.SGE, pd verbs.PD, addr uint64, n int) ([]verbs.SGE, error) {
	if n == 0 {
		return dst, nil
	}
	if uint64(n) > math.MaxUint32 {
		return dst, fmt.Errorf("use buffer: %w: one element has %d bytes, and a task moves at most %d bytes of one element; make a list of smaller elements",
			ErrRange, n, uint32(math.MaxUint32))
	}
	key, err := b.m.LKey(pd)
	if err != nil {
		return dst, err
	}
	return append(dst, verbs.SGE{Addr: addr, Length: uint32(n), LKey: key}), nil
}

// AppendData makes the first n bytes of the room from b to the end of its list data, after a
// device has written them. If n exceeds the room, the error matches ErrRange and nothing
// changes.
func (s forFriends) AppendData(n int) error {
	b := s.Buf
	if err := b.Err(); err != nil {
		return err
	}
	if room := b.ListRoom(); n < 0 || n > room {
		return fmt.Errorf("append to buffer: %w: %d bytes into %d bytes of room", ErrRange, n, room)
	}
	for e := b; n > 0; e = e.next {
		part := min(n, e.room())
		e.dataLen += part
		e.version++
		n -= part
	}
	return nil
}

// Append copies p into the room from b to the end of its list and makes it data. It fails, and
// copies nothing, where p does not fit (ErrRange) or an element is in memory that this program
// cannot access, a peer's or a dma-buf's (mmap.ErrRemote).
func (b *Buf) Append(p []byte) error {
	if err := b.Err(); err != nil {
		return err
	}
	if room := b.ListRoom(); len(p) > room {
		return fmt.Errorf("append to buffer: %w: %d bytes into %d bytes of room", ErrRange, len(p), room)
	}
	for e := b; e != nil; e = e.next {
		if e.Memory() == nil {
			return fmt.Errorf("append to buffer: %w: this program cannot access the memory of a peer or of a dma-buf; write to it with a task", mmap.ErrRemote)
		}
	}
	for e := b; len(p) > 0; e = e.next {
		n := copy(e.Memory()[e.dataOff+e.dataLen:], p)
		e.dataLen += n
		e.version++
		p = p[n:]
	}
	return nil
}
