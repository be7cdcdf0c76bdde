package dma

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/verbs"
)

// cursor is a position in the data, or in the room, of a list.
type cursor struct {
	buf *bufinv.Buf
	off int // in the data or room of buf
}

var errChanged = errors.New("the buffers were changed in flight")

// split takes the next segment off a task: as many bytes, and as many buffers on either side, as
// the device takes at a time.
func (c *Context) split(t *CopyTask) (from, to []verbs.SGE) {
	s, d, most := len(c.sendSGL), len(c.recvSGL), c.set.MaxSGE
	for size := 0; t.left > 0 && size < c.set.maxSegment; {
		n, err := t.step(c.set.maxSegment - size)
		var src, dst verbs.SGE
		if err == nil {
			src, dst, err = t.entries(c.set.PD, n)
		}
		if err != nil {
			t.changed, t.left = fmt.Errorf("dma: copy: %w", err), 0
			break
		}
		if !fits(c.sendSGL[s:], &src, most) || !fits(c.recvSGL[d:], &dst, most) {
			break
		}
		c.sendSGL, c.recvSGL = join(c.sendSGL, s, &src), join(c.recvSGL, d, &dst)
		t.from.off += n
		t.to.off += n
		t.left -= n
		size += n
	}
	return c.sendSGL[s:], c.recvSGL[d:]
}

// step skips used-up elements, and returns how many bytes the next source and destination
// elements have in common, at most limit.
func (t *CopyTask) step(limit int) (int, error) {
	for t.from.buf != nil && t.from.off >= t.from.buf.DataLen() {
		t.from = cursor{buf: t.from.buf.Next()}
	}
	for t.to.buf != nil && t.to.off >= t.to.buf.Room() {
		t.to = cursor{buf: t.to.buf.Next()}
	}
	if t.from.buf == nil || t.to.buf == nil {
		return 0, errChanged
	}
	return min(limit, t.left, t.from.buf.DataLen()-t.from.off, t.to.buf.Room()-t.to.off), nil
}

// entries returns the entries for the next n bytes on both sides.
func (t *CopyTask) entries(pd verbs.PD, n int) (src, dst verbs.SGE, err error) {
	src = verbs.SGE{Addr: t.from.buf.DataAddr() + uint64(t.from.off), Length: uint32(n)}
	dst = verbs.SGE{Addr: t.to.buf.TailAddr() + uint64(t.to.off), Length: uint32(n)}
	if src.LKey, err = t.from.buf.Map().LKey(pd); err == nil {
		dst.LKey, err = t.to.buf.Map().LKey(pd)
	}
	return src, dst, err
}

// fits reports whether a list of at most most entries has room for one more.
func fits(list []verbs.SGE, e *verbs.SGE, most int) bool {
	return len(list) < most || continues(list, e)
}

// continues reports whether an entry begins where the list ends.
func continues(list []verbs.SGE, e *verbs.SGE) bool {
	if len(list) == 0 {
		return false
	}
	last := &list[len(list)-1]
	return last.LKey == e.LKey && last.Addr+uint64(last.Length) == e.Addr
}

// join appends an entry to the list that begins at start.
func join(all []verbs.SGE, start int, e *verbs.SGE) []verbs.SGE {
	if continues(all[start:], e) {
		all[len(all)-1].Length += e.Length
		return all
	}
	return append(all, *e)
}
