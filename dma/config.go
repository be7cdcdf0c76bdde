package dma

import (
	"fmt"
	"math"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/gid"
)

// Config configures a Context. The zero value is usable.
type Config struct {
	// Name appears in errors and logs. Empty: "dma".
	Name string
	// Engine drives the context; New connects the two. Nil: call Engine.Connect later.
	Engine *pe.Engine
	// PD is the protection domain in which all memory for copies must be registered. Nil: the
	// device's default.
	PD verbs.PD
	// Port of the device, from 1. Zero: 1.
	Port int
	// GIDIndex is the index in the port's GID table of the address by which the device reaches
	// itself. Nil: the first usable one, as package rdma chooses.
	GIDIndex *int
	// PKeyIndex is the index in the port's P_Key table of a partition that the port is in
	// (InfiniBand).
	PKeyIndex int
	// QueueSize is the number of segments of copies that can be at the device at a time: at most
	// as many as the device's queue pairs take, and half of what its completion queues take.
	// Further segments wait in the context, in order. Zero: as many as the pools hold, and at
	// least 8, or the device's limit.
	QueueSize int
	// MaxSGE is the number of buffers of a list that the device takes at a time, on either
	// side; longer lists go in segments. Zero: 4, or the device's limit.
	MaxSGE int
}

// settings are a checked Config with all defaults but the queue size filled in.
type settings struct {
	Config
	gid        verbs.GIDEntry
	lid        uint16
	mtu        verbs.MTU
	maxSegment int // bytes
	maxQueue   int
}

const (
	defaultSGE = 4
	// minQueue lets the segments of a copy follow each other where pools are small.
	minQueue = 8
)

func resolve(dev verbs.Device, cfg Config) (*settings, error) {
	s := &settings{Config: cfg}
	attr, err := dev.Query()
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", dev.Name(), err)
	}
	if !attr.Transports.Has(verbs.RC) {
		return nil, fmt.Errorf("%w: %s has no reliable connections, which copies need", ErrNotSupported, dev.Name())
	}
	if s.Name == "" {
		s.Name = "dma"
	}
	if s.PD == nil {
		s.PD = dev.DefaultPD()
	} else if s.PD.Device() != dev {
		return nil, fmt.Errorf("%w: Config.PD belongs to %s; use a protection domain of %s", ErrInvalid, s.PD.Device().Name(), dev.Name())
	}
	if s.Port == 0 {
		s.Port = 1
	}
	if s.Port < 1 || s.Port > attr.Ports {
		return nil, fmt.Errorf("%w: Config.Port is %d; %s has ports 1 to %d", ErrRange, s.Port, dev.Name(), attr.Ports)
	}
	if s.PKeyIndex < 0 || s.PKeyIndex > math.MaxUint16 {
		return nil, fmt.Errorf("%w: Config.PKeyIndex is %d; it must be 0 to %d", ErrRange, s.PKeyIndex, math.MaxUint16)
	}
	if err := s.setSizes(dev, &attr); err != nil {
		return nil, err
	}
	return s, s.setPath(dev)
}

func (s *settings) setSizes(dev verbs.Device, attr *verbs.DeviceAttr) error {
	s.maxSegment = int(min(attr.MaxMessage, 1<<30))
	s.maxQueue = min(attr.MaxQPWR, attr.MaxCQE/2)
	if s.QueueSize < 0 || s.QueueSize > s.maxQueue {
		return fmt.Errorf("%w: Config.QueueSize is %d; %s allows %d at most", ErrRange, s.QueueSize, dev.Name(), s.maxQueue)
	}
	if s.MaxSGE < 0 || s.MaxSGE > attr.MaxSGE {
		return fmt.Errorf("%w: Config.MaxSGE is %d; %s allows %d at most", ErrRange, s.MaxSGE, dev.Name(), attr.MaxSGE)
	}
	if s.MaxSGE == 0 {
		s.MaxSGE = min(defaultSGE, attr.MaxSGE)
	}
	if s.maxSegment < 1 || s.maxQueue < 1 || s.MaxSGE < 1 {
		return fmt.Errorf("%w: %s takes messages of %d bytes in %d buffers, %d at a time", ErrNotSupported, dev.Name(), attr.MaxMessage, attr.MaxSGE, s.maxQueue)
	}
	return nil
}

// setPath fills in the port and GID by which the device reaches itself.
func (s *settings) setPath(dev verbs.Device) error {
	port, err := dev.QueryPort(s.Port)
	if err != nil {
		return fmt.Errorf("query port %d of %s: %w", s.Port, dev.Name(), err)
	}
	if !port.ActiveMTU.Valid() {
		return fmt.Errorf("%w: port %d of %s reports the path MTU %d; check that its network interface is up", ErrDevice, s.Port, dev.Name(), port.ActiveMTU)
	}
	s.lid, s.mtu = port.LID, port.ActiveMTU
	if s.gid, err = gid.Find(dev, s.Port, port.LinkLayer, s.GIDIndex); err != nil {
		return err
	}
	s.GIDIndex = new(s.gid.Index)
	return nil
}
