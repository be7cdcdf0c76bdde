package buffers

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rsocket/internal/protocol"
	"github.com/verbena-rdma/verbena/verbs"
)

// Remote is the memory of the peer of one connection.
type Remote struct {
	SGL       *mmap.Map // its target SGL; nil before Meet
	device    verbs.Device
	targets   fifo.Queue[*Target] // in order
	withdrawn fifo.Queue[*Target] // data messages to them may be under way
}

// Target is a receive buffer of the peer that has room.
type Target struct {
	Memory *mmap.Map
	Offset int // of the first byte that has not been sent
}

// Meet takes what the private data of the peer names.
func (r *Remote) Meet(dev verbs.Device, h *protocol.Hello) (err error) {
	r.device = dev
	sgl := h.Target
	sgl.Length = protocol.Entries * protocol.EntrySize
	if r.SGL, err = r.open(sgl); err != nil || h.Buffer.Length == 0 {
		return err
	}
	return r.Add(h.Buffer)
}

func (r *Remote) open(e protocol.Entry) (*mmap.Map, error) {
	m, err := mmap.FromKey(r.device, e.Addr, int(e.Length), e.Key, mmap.RemoteWrite)
	if err != nil {
		return nil, fmt.Errorf("memory of the peer: %w", err)
	}
	return m, nil
}

// Add adds a receive buffer of the peer.
func (r *Remote) Add(e protocol.Entry) error {
	m, err := r.open(e)
	if err == nil {
		r.targets.Push(&Target{Memory: m})
	}
	return err
}

// Front is the buffer to send to.
func (r *Remote) Front() *Target { return r.targets.Front() }

// Pop removes that buffer, which is full. The caller closes its memory.
func (r *Remote) Pop() { r.targets.Pop() }

// Withdraw takes the buffers away, until CloseWithdrawn closes their memory.
func (r *Remote) Withdraw() {
	for r.targets.Len() > 0 {
		r.withdrawn.Push(r.targets.Pop())
	}
}

// CloseWithdrawn closes the memory of withdrawn buffers. Nothing at the device uses it.
func (r *Remote) CloseWithdrawn() error { return closeAll(&r.withdrawn) }

func closeAll(list *fifo.Queue[*Target]) (err error) {
	for list.Len() > 0 {
		err = errors.Join(err, list.Pop().Memory.Close())
	}
	return err
}

// Close closes all of it. Nothing at the device uses it.
func (r *Remote) Close() (err error) {
	if r.SGL != nil {
		err = r.SGL.Close()
	}
	return errors.Join(err, closeAll(&r.targets), r.CloseWithdrawn())
}
