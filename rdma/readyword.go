package rdma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/verbena-rdma/verbena/internal/optional"
	"github.com/verbena-rdma/verbena/verbs"
)

// readyWord is the word of a connection that the peer writes signals to.
type readyWord struct {
	conn    *Connection
	region  verbs.MR    // nil: released
	cancel  func()      // ends the watch on the word; nil: the device has no watches
	pending atomic.Bool // the connection is in written of the context
}

// register registers the connection's word alone, so that its key gives no access to the word
// of another connection, nor to any once the connection has been destroyed.
func (r *readyWord) register(conn *Connection) (err error) {
	r.conn = conn
	atomic.StoreUint64(r.word(), 0)
	r.region, err = conn.ctx.set.PD.RegMR(conn.ctx.readyWords.Bytes(conn.slot, wordSize), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return fmt.Errorf("register the 8 bytes for the peer's ready signal with %s: %w", conn.ctx.dev.Name(), err)
	}
	if qp, ok := conn.lane.QP().(optional.ExpectKeyQP); ok {
		if err := qp.ExpectKey(r.region.RKey()); err != nil {
			return errors.Join(err, r.region.Close())
		}
	}
	return nil
}

// watchable reports whether the device can report writes to the word.
func (r *readyWord) watchable() bool {
	_, able := r.region.(optional.WatchableMR)
	return able
}

// watch makes the device report writes to the word, if it can.
func (r *readyWord) watch() (err error) {
	if region, able := r.region.(optional.WatchableMR); able {
		r.cancel, err = region.Watch(0, 8, r.onWrite)
	}
	return err
}

// word is the connection's word of the memory that signals arrive in. The device may
// write it at any time.
func (r *readyWord) word() *uint64 {
	return (*uint64)(unsafe.Pointer(&r.conn.ctx.readyWords.Bytes(r.conn.slot, wordSize)[0]))
}

// contains reports whether the peer has written a value: this end's nonce, or its complement.
func (r *readyWord) contains(value uint64) bool {
	var want [8]byte
	binary.BigEndian.PutUint64(want[:], value)
	return atomic.LoadUint64(r.word()) == binary.NativeEndian.Uint64(want[:])
}

// onWrite is called by the device, on any goroutine, when the word was written.
func (r *readyWord) onWrite() {
	if !r.pending.Swap(true) {
		r.conn.ctx.written.add(r.conn)
	}
}

// clearPending is called before the word is read, so that a later write is not missed.
func (r *readyWord) clearPending() { r.pending.Store(false) }

// release implements establishment.
func (r *readyWord) release() {
	if r.cancel != nil {
		r.cancel()
		r.cancel = nil
	}
	if r.region == nil {
		return
	}
	if err := r.region.Close(); err != nil {
		r.conn.ctx.control.Log().Warn().Err(err).Stringer("connection", r.conn).Msg("failed to deregister the memory of the ready signal")
	}
	r.region = nil
}

// writtenWords passes connections whose words were written, each once, from the device's
// goroutines to the engine's.
type writtenWords struct {
	passive
	pending atomic.Bool
	mu      sync.Mutex
	list    []*Connection
	wake    func()
}

func (w *writtenWords) add(conn *Connection) {
	w.mu.Lock()
	w.list = append(w.list, conn)
	w.mu.Unlock()
	w.pending.Store(true)
	w.wake()
}

// busy implements part.
func (w *writtenWords) busy() bool { return w.pending.Load() }

// work implements part: it reads the words that were written.
func (w *writtenWords) work() int {
	if !w.pending.Load() {
		return 0
	}
	w.pending.Store(false)
	w.mu.Lock()
	list := w.list
	w.list = nil
	w.mu.Unlock()
	for _, conn := range list {
		if p := conn.life.Phase(); p.Usable() || p.Closing() {
			conn.establishment.handle(event{kind: wordWritten})
		}
	}
	return len(list)
}
