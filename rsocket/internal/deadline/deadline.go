// Package deadline has deadlines that can move while somebody waits.
package deadline

import (
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/internal/host"
)

// Deadline is the deadline of an operation. The lock of its owner guards it.
type Deadline struct {
	Expired bool
	set     uint64 // how often it was set: a timer that goes off late does nothing
	timer   host.Timer
}

// Reset sets the deadline; zero: none. mu is the owner's lock, which is held. When the deadline has
// passed, wake is called with it.
func (d *Deadline) Reset(h host.Host, mu *sync.Mutex, t time.Time, wake func()) {
	d.set++
	d.Expired = false
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if t.IsZero() {
		return
	}
	left := h.Until(t)
	if left <= 0 {
		d.Expired = true
		wake()
		return
	}
	set := d.set
	d.timer = h.AfterFunc(left, func() {
		mu.Lock()
		defer mu.Unlock()
		if d.set == set {
			d.Expired = true
			wake()
		}
	})
}
