package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/traffic"
	"github.com/verbena-rdma/verbena/verbs"
)

// service is a context of the server on its own device, and of the clients that visit it. Its
// settings are the defaults, except for those that make it different from the other services.
type service struct {
	name      string
	device    string
	transport verbs.QPType
	ipv6      bool // by the IPv6 address of the device
	shared    bool // through shared memory, which faults end
}

// chosen has the names of the services to run; empty: all.
var chosen []string

// services returns the chosen services for which the machine has addresses.
func services(ipv6 bool) []service {
	list := []service{
		{name: "udp", device: "soft-lo?local=off"},
		{name: "udp6", device: "soft-lo?local=off&congestion=on", ipv6: true},
		{name: "shared", device: "soft-lo", shared: true},
		{name: "srd", device: "soft-lo", transport: verbs.SRD},
		{name: "ud", device: "soft-lo", transport: verbs.UD},
	}
	var found []service
	for _, s := range list {
		if (ipv6 || !s.ipv6) && (len(chosen) == 0 || slices.Contains(chosen, s.name)) {
			found = append(found, s)
		}
	}
	return found
}

func serviceByName(name string) (service, error) {
	for _, s := range services(true) {
		if s.name == name {
			return s, nil
		}
	}
	return service{}, fmt.Errorf("there is no service %q", name)
}

func (s service) datagrams() bool { return s.transport != verbs.RC }

// sessions reports whether the server keeps state for each session of a client.
func (s service) sessions() bool { return s.transport != verbs.UD }

// maps is the number of memory maps that programs exchange. With SRD each link tells which memory
// it has.
func (s service) maps() int { return number(!s.datagrams()) }

// end is one end of a service on a device of its own, in the server or a client.
type end struct {
	*traffic.End
	service service
	dev     faultyDevice
	ended   chan error // the result of Run
	cancel  context.CancelFunc
}

// maxPause is the longest pause between two operations of a client that stays.
const maxPause = 10 * time.Millisecond

// open opens an end, and waits until its context is Running.
func (s service) open(cfg traffic.Config) (_ *end, err error) {
	dev, err := openDevice(s.device)
	if err != nil {
		return nil, err
	}
	running := make(chan struct{})
	cfg.Device, cfg.Transport, cfg.MaxData = dev, s.transport, 128<<10
	cfg.Running = func() { close(running) }
	if sabotage != "" {
		cfg.Tamper = tamper
	}
	if s.ipv6 {
		index, err := ipv6Index(dev)
		if err != nil {
			return nil, errors.Join(err, dev.Close())
		}
		cfg.Path = rdma.PathConfig{GIDIndex: &index}
	}
	e := &end{service: s, dev: dev, ended: make(chan error, 1)}
	if e.End, err = traffic.Open(cfg); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	go func() { e.ended <- e.Run(ctx) }()
	select {
	case <-running:
		return e, nil
	case err := <-e.ended:
		e.ended <- err
		return nil, errors.Join(fmt.Errorf("the context %q ended while it was starting", cfg.Name), e.stop())
	}
}

// stop ends the work and closes everything. Anything left over is an error.
func (e *end) stop() error {
	e.Stop()
	err := <-e.ended
	e.cancel()
	return errors.Join(err, e.Close(), e.dev.Close())
}

// stats returns what the end has done so far. It is called on the engine's goroutine.
func (e *end) stats() *stats {
	return &stats{e.Stats, len(e.Links) + number(e.Pinging())}
}

// addResources counts what the end holds, on the engine's goroutine.
func (e *end) addResources(h *resources) {
	h.Tasks += e.Ctx.Allocated()
	h.Buffers += e.BuffersInUse()
	h.Links += len(e.Links)
}

// rng returns the source of random numbers of one end.
func rng(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

// faultyDevice is a software device with adjustable faults.
type faultyDevice interface {
	verbs.Device
	SetFaults(f soft.Faults) error
}

func openDevice(name string) (faultyDevice, error) {
	dev, err := soft.Driver{}.Open(name)
	if err != nil {
		return nil, err
	}
	d, ok := dev.(faultyDevice)
	if !ok {
		return nil, fmt.Errorf("the device %s is a %T, which cannot inject faults", name, dev)
	}
	return d, nil
}

// ipv6Index returns the index of an IPv6 address in the GID table, or -1.
func ipv6Index(dev verbs.Device) (int, error) {
	gids, err := dev.GIDs(1)
	if err != nil {
		return -1, err
	}
	for _, g := range gids {
		if a := g.GID.Addr(); a.Is6() && !a.Is4In6() {
			return g.Index, nil
		}
	}
	return -1, nil
}

// haveIPv6 reports whether the loopback interface has an IPv6 address.
func haveIPv6() (bool, error) {
	dev, err := openDevice("soft-lo")
	if err != nil {
		return false, err
	}
	index, err := ipv6Index(dev)
	if closing := dev.Close(); err == nil {
		err = closing
	}
	return index >= 0, err
}
