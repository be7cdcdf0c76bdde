package sample

import (
	"errors"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// Setup is a device, an engine and a context, for programs that do not demonstrate how to make
// these.
type Setup struct {
	Device verbs.Device
	Engine *pe.Engine
	RDMA   *rdma.Connections
}

// Open makes a setup on the device and address that the flags select.
func (s *Session) Open(cfg rdma.Config) (*Setup, error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return nil, err
	}
	u := &Setup{Device: dev, Engine: pe.New(pe.Config{Log: s.Log})}
	cfg.Engine, cfg.Path.GIDIndex = u.Engine, s.GIDIndex
	if u.RDMA, err = rdma.New(dev, cfg); err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return u, nil
}

// Close closes the context, the engine, the device and its memory.
func (u *Setup) Close() error { return errors.Join(u.Engine.Close(), u.Device.Close()) }
