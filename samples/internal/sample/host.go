package sample

import (
	"errors"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// Host is a device, an engine and a context on it, for programs that do not demonstrate how to
// make these.
type Host struct {
	Device verbs.Device
	Engine *pe.Engine
	RDMA   *rdma.Connections
}

// Open makes a host on the device and address that the flags select.
func (s *Session) Open(cfg rdma.Config) (*Host, error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return nil, err
	}
	h := &Host{Device: dev, Engine: pe.New(pe.Config{Log: s.Log})}
	cfg.Engine, cfg.Path.GIDIndex, cfg.Log = h.Engine, s.GIDIndex, s.Log
	if h.RDMA, err = rdma.New(dev, cfg); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// Close closes the context, the engine, the device and its memory.
func (h *Host) Close() error { return errors.Join(h.Engine.Close(), h.Device.Close()) }
