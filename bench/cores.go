package main

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/median"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rdma/rdmatest"
	"github.com/verbena-rdma/verbena/verbs"
)

// compareCores measures engines on one device, each of which drives both ends of its
// connection: a single engine; one engine for each core; and one for each core, all in one
// shard.
func compareCores(o options) (string, error) {
	separator := "?"
	if strings.Contains(o.device, "?") {
		separator = "&"
	}
	one := o.device + separator + "shards=1"
	soft, err := isSoft(o.device)
	if err != nil {
		return "", err
	}
	n := runtime.GOMAXPROCS(0)
	var single, many, shared []float64
	for range o.rounds {
		for _, m := range []struct {
			device  string
			engines int
			rates   *[]float64
		}{{o.device, 1, &single}, {o.device, n, &many}, {one, n, &shared}} {
			if m.device == one && !soft {
				continue
			}
			rate, err := ratesOfEngines(m.device, m.engines, o.duration)
			if err != nil {
				return "", err
			}
			*m.rates = append(*m.rates, rate)
		}
	}
	a, b := median.Of(single), median.Of(many)
	text := fmt.Sprintf("%.2f M writes/s of %d bytes by one engine; by %d engines %.2f, ratio %.2f", a/1e6, rateSize, n, b/1e6, b/a)
	if soft {
		c := median.Of(shared)
		text += fmt.Sprintf("; in one shard %.2f, ratio %.2f", c/1e6, c/a)
	}
	return fmt.Sprintf("%s; medians of %d", text, o.rounds), nil
}

// ratesOfEngines returns the sum of the rates of all engines.
func ratesOfEngines(name string, engines int, d time.Duration) (rate float64, err error) {
	dev, err := device.Open(name)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	var work sync.WaitGroup
	rates, errs := make([]float64, engines), make([]error, engines)
	for i := range engines {
		work.Go(func() { rates[i], errs[i] = loopbackWrites(dev, d) })
	}
	work.Wait()
	for _, r := range rates {
		rate += r
	}
	return rate, errors.Join(errs...)
}

// loopbackWrites drives an engine whose context writes to itself, in batches of tasks.
func loopbackWrites(dev verbs.Device, d time.Duration) (rate float64, err error) {
	e := &endpoint{engine: pe.New(pe.Config{})} // the endpoint does not own the device
	defer func() { err = errors.Join(err, e.close()) }()
	if e.local, err = mmap.Alloc(dev, 4096, mmap.LocalReadWrite|access); err != nil {
		return 0, err
	}
	if e.remote, err = e.local.AsRemote(dev); err != nil {
		return 0, err
	}
	if e.bufs, err = bufinv.New(2 * rateBatch * rateBatches); err != nil {
		return 0, err
	}
	if e.rdma, err = rdma.New(dev, rdma.Config{Engine: e.engine, Permissions: access, MaxConnections: 2}); err != nil {
		return 0, err
	}
	if err = errors.Join(e.makePool(rateBatch*rateBatches), e.rdma.Start()); err != nil {
		return 0, err
	}
	if e.conn, _, err = rdmatest.Connect(e.rdma, e.rdma); err != nil {
		return 0, err
	}
	if err = waitRunning(e); err != nil {
		return 0, err
	}
	if err = e.repeatBatches(); err != nil {
		return 0, err
	}
	writes, elapsed, err := measure(e, d)
	return float64(writes) / elapsed.Seconds(), err
}

// isSoft reports whether name is that of a software device.
func isSoft(name string) (bool, error) {
	dev, err := device.Open(name)
	if err != nil {
		return false, err
	}
	return dev.Driver() == "soft", dev.Close()
}
