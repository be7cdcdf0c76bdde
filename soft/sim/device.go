package sim

import (
	"fmt"
	"io"
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/optional"
	"github.com/verbena-rdma/verbena/soft/internal/roce"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/verbs"
)

// device is the device of a host.
type device struct {
	*roce.Device
	capture io.Closer // nil: none
}

var (
	_ verbs.Device          = (*device)(nil)
	_ verbs.CMDevice        = (*device)(nil)
	_ verbs.ClosingDevice   = (*device)(nil)
	_ optional.MemoryDevice = (*device)(nil)
)

// Driver implements verbs.Device.
func (d *device) Driver() string { return "sim" }

// Device returns the device of a host without a program, for tests that drive engines
// themselves. It is opened on the first call, also after a crash and a restart, and closed at
// the end of the test.
func (h *Host) Device() verbs.Device {
	d, err := h.open()
	if err != nil {
		panic(fmt.Sprintf("sim: host %s: %v", h.name, err))
	}
	return d
}

// open opens the device, unless it is open.
func (h *Host) open() (*device, error) {
	s := h.s
	s.mu.Lock()
	open, down := h.dev, h.down
	s.mu.Unlock()
	switch {
	case open != nil:
		return open, nil
	case down:
		return nil, fmt.Errorf("open device sim-%s: %w", h.name, ErrCrashed)
	}
	d := &device{}
	cfg := roce.Config{
		Network: &hostNetwork{turns: turns{h}, sockets: make(map[*link.Socket]*port)},
		Owner:   d, Name: "sim-" + h.name, Interface: h.name, InterfaceMTU: h.cfg.MTU, MaxShards: 1,
		CongestionControl: h.cfg.CongestionControl, SRDSeed: s.seed ^ uint64(h.index), Log: h.cfg.Log,
	}
	for _, a := range h.cfg.Addresses {
		cfg.Addresses = append(cfg.Addresses, netip.AddrPortFrom(a, 0))
	}
	capture, err := s.trace.capture(h)
	if err != nil {
		return nil, err
	}
	if capture != nil {
		cfg.Capture, d.capture = capture, capture
	}
	if d.Device, err = roce.Open(cfg); err != nil {
		return nil, err
	}
	s.mu.Lock()
	h.dev = d
	s.mu.Unlock()
	return d, nil
}

// closeDevice closes the device, if it is open. That of a crashed host stays as it is: nothing
// works for it.
func (h *Host) closeDevice() error {
	s := h.s
	s.mu.Lock()
	d, down := h.dev, h.down
	h.dev = nil
	s.mu.Unlock()
	if d == nil {
		return nil
	}
	err := d.Close()
	if d.capture != nil {
		_ = d.capture.Close()
	}
	if down {
		return nil
	}
	return err
}
