package mmap

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/optional"
)

// Watch calls f after a peer has written to any of the n bytes from offset off, or has done an
// atomic on them, until cancel is called or the Map is closed. After cancel has returned, f is
// not running and will not run again.
//
// Only some devices notice such changes, the software device among them (optional.WatchableMR).
// complete reports whether all devices do with which the Map is registered now; changes that come
// through others are not noticed. Writes by the program itself, or by its tasks, do not count.
//
// f runs on whichever goroutine drives the device, possibly with the device's locks held: it
// must return promptly, and must call neither the device nor the Map.
//
// Errors match ErrRange for bytes outside the Map, ErrInvalid, ErrRemote and ErrClosed, or are
// the device's.
func (s forFriends) Watch(off, n int, f func()) (cancel func(), complete bool, err error) {
	m := s.Map
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case f == nil:
		return nil, false, fmt.Errorf("watch memory map: %w: no function is given", ErrInvalid)
	case m.remote:
		return nil, false, fmt.Errorf("watch memory map: it %w; only its owner can watch it", ErrRemote)
	case m.closed.Load():
		return nil, false, fmt.Errorf("watch memory map: it is %w", ErrClosed)
	case off < 0 || n < 1 || off > m.size || n > m.size-off:
		return nil, false, fmt.Errorf("watch memory map: %w: %d bytes from offset %d, of %d", ErrRange, n, off, m.size)
	}
	var cancels []func()
	cancel = func() {
		for _, c := range cancels {
			c()
		}
	}
	complete = true
	for _, r := range m.registrations() {
		w, able := r.mr.(optional.WatchableMR)
		if !able {
			complete = false
			continue
		}
		c, err := w.Watch(uint64(off), uint64(n), f)
		if err != nil {
			cancel()
			return nil, false, fmt.Errorf("watch memory map: %s: %w", r.dev.Name(), err)
		}
		cancels = append(cancels, c)
	}
	return cancel, complete, nil
}
