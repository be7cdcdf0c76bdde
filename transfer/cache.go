package transfer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/verbena-rdma/verbena/mmap"
)

// hold finds the slice of an item, which then stays registered until letGo, and registers it if
// Config.CacheBytes allows. The lock is held, but not while memory is registered.
func (a *Agent) hold(it *item) (err error) {
	if len(it.slice) == 0 {
		return nil
	}
	s := find(a.segments, it.slice)
	if s == nil && a.cfg.CacheBytes > 0 {
		if s = find(a.cached, it.slice); s != nil {
			a.counters.CacheHits++
		} else if s, err = a.fill(it.slice); err != nil {
			return err
		}
		a.idle.Remove(&s.place)
	}
	if it.local = s; s != nil {
		s.inUse++
	}
	return nil
}

// letGo notes that an item does not use a segment any more.
func (a *Agent) letGo(s *Segment) {
	if s.inUse--; s.inUse == 0 && s.cached {
		a.idle.Push(&s.place)
	}
}

// fill registers a slice, in place of what was not used for long. It unlocks the agent meanwhile.
func (a *Agent) fill(slice []byte) (*Segment, error) {
	a.counters.CacheMisses++
	var evicted []*Segment
	for a.idle.Len() > 0 && (len(a.cached) >= a.cfg.CacheEntries || a.counters.CacheBytes+uint64(len(slice)) > uint64(a.cfg.CacheBytes)) {
		old := a.idle.Pop().Value
		a.cached = slices.DeleteFunc(a.cached, func(s *Segment) bool { return s == old })
		a.counters.CacheEvictions++
		a.counters.CacheBytes -= uint64(len(old.mem))
		evicted = append(evicted, old)
	}
	a.mu.Unlock()
	var err error
	for _, old := range evicted {
		err = errors.Join(err, old.release())
	}
	s, failed := a.newSegment("", slice, mmap.LocalReadWrite)
	err = errors.Join(err, failed)
	a.mu.Lock()
	if err == nil {
		err = a.closed
	}
	if err != nil {
		if failed == nil {
			err = errors.Join(err, s.release())
		}
		return nil, fmt.Errorf("register %d bytes in the cache: %w", len(slice), err)
	}
	s.cached, s.place.Value = true, s
	at, _ := slices.BinarySearchFunc(a.cached, s, func(s, t *Segment) int {
		return cmp.Or(byAddress(s, t), cmp.Compare(len(s.mem), len(t.mem)))
	})
	a.cached = slices.Insert(a.cached, at, s)
	a.counters.CacheBytes += uint64(len(slice))
	return s, nil
}

func firstByte(slice []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(slice))) }
