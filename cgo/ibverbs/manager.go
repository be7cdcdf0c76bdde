//go:build linux && cgo && verbs

package ibverbs

import (
	"sync"

	"github.com/verbena-rdma/verbena/cgo/internal/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

var (
	_ verbs.CMDevice    = (*device)(nil)
	_ verbs.MulticastCM = (*connectionManager)(nil)
	_ verbs.MulticastQP = (*queuePair)(nil)
)

// connectionManager is a connection manager that Device.Close counts as open until it is closed.
type connectionManager struct {
	verbs.CM
	verbs.MulticastCM
	device *device
	closed sync.Once
}

// OpenCM implements [verbs.CMDevice] by librdmacm; see package [rdmacm] for its peculiarities.
// Without the library, or its kernel module, the error matches [verbs.ErrNotSupported].
func (d *device) OpenCM(handle func(verbs.CMEvent)) (verbs.CM, error) {
	d.mu.Lock()
	if d.ctx == nil {
		d.mu.Unlock()
		return nil, d.closedError("open connection manager")
	}
	d.managers++
	d.mu.Unlock()
	m, err := rdmacm.Open(d, handle)
	if err != nil {
		d.managerClosed()
		return nil, err
	}
	return &connectionManager{CM: m, MulticastCM: m.(verbs.MulticastCM), device: d}, nil
}

func (d *device) managerClosed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.managers--
}

// Close implements [verbs.CM].
func (m *connectionManager) Close() error {
	err := m.CM.Close()
	m.closed.Do(m.device.managerClosed)
	return err
}
