package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/bench/internal/measure"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/test/verbstest"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	srdBatch      = 64
	srdBatches    = 8
	srdLarge      = 1 << 20
	srdInFlight   = 8
	srdMessage    = 8
	srdMemory     = 2 * srdLarge
	srdQKey       = 0x11111111
	srdPerQueue   = 2 * srdBatch * srdBatches
	srdPortNumber = 1
)

// deviceGroup is one device, the hub, and a number of peer devices in the same process, with
// their queue pairs of one service. The hub has a queue pair for each of the peers' with RC,
// and a single one with SRD.
type deviceGroup struct {
	service verbs.QPType
	hub     *deviceEnd
	peers   []*deviceEnd
	targets []target
	next    int // index of the next target
	wcs     []verbs.WC
}

// deviceEnd is a device with its objects.
type deviceEnd struct {
	dev     verbs.Device
	cq      verbs.CQ
	mr      verbs.MR
	mem     []byte
	objects []io.Closer // in the order in which they were made

	counters bool
}

// target is a queue pair of a peer, and the address handles to it and back.
type target struct {
	peer     *deviceEnd
	from, to verbs.QP
	toPeer   verbs.AH // SRD only
	toHub    verbs.AH
}

// newDeviceEnd opens a device, and registers the memory. Several peers may share memory, since
// nobody reads the data.
func newDeviceEnd(o options, name string, mem []byte) (v *deviceEnd, err error) {
	v = &deviceEnd{mem: mem, counters: o.counters}
	if v.dev, err = device.Open(name); err != nil {
		return nil, err
	}
	if v.mr, err = v.dev.DefaultPD().RegMR(v.mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead); err == nil {
		v.objects = append(v.objects, v.mr)
		v.cq, err = v.dev.CreateCQ(verbs.CQInit{Capacity: 1 << 16})
	}
	if err != nil {
		return nil, errors.Join(err, v.close())
	}
	v.objects = append(v.objects, v.cq)
	return v, nil
}

// queuePair makes a queue pair. One of SRD is ready, one of RC has to be connected.
func (v *deviceEnd) queuePair(service verbs.QPType) (verbs.QP, error) {
	q, err := v.dev.DefaultPD().CreateQP(verbs.QPInit{
		Type: service, SendCQ: v.cq, RecvCQ: v.cq, MaxSendWR: srdPerQueue, MaxRecvWR: srdPerQueue, MaxSendSGE: 1, MaxRecvSGE: 1,
		AdaptiveRetransmission: service == verbs.RC,
	})
	if err != nil {
		return nil, err
	}
	v.objects = append(v.objects, q)
	if service == verbs.SRD {
		err = verbstest.BringUp(q, service, verbs.QPAttr{Port: srdPortNumber, QKey: srdQKey})
	}
	return q, err
}

// handle makes an address handle.
func (v *deviceEnd) handle(to verbs.AddressAttr) (verbs.AH, error) {
	ah, err := v.dev.DefaultPD().CreateAH(to)
	if err == nil {
		v.objects = append(v.objects, ah)
	}
	return ah, err
}

func (v *deviceEnd) address() (verbs.AddressAttr, error) {
	gids, err := v.dev.GIDs(srdPortNumber)
	if err != nil {
		return verbs.AddressAttr{}, err
	}
	return verbs.AddressAttr{DGID: gids[0].GID, Port: srdPortNumber, UDPPort: gids[0].UDPPort}, nil
}

func (v *deviceEnd) close() (err error) {
	for _, c := range slices.Backward(v.objects) {
		err = errors.Join(err, c.Close())
	}
	if v.counters {
		err = errors.Join(err, showCounters(v.dev))
	}
	return errors.Join(err, v.dev.Close())
}

// srdDevice returns the name of the device without its path through shared memory: both
// services then use UDP, the only path of SRD.
func srdDevice(name string) string {
	if !strings.HasPrefix(name, "soft-") || strings.Contains(name, "local=") {
		return name
	}
	if strings.Contains(name, "?") {
		return name + "&local=off"
	}
	return name + "?local=off"
}

// srdPeerDevice returns the name of the device of a peer. On the loopback interface each peer
// gets an address of its own, so that it need not search for a free one: there may be a
// thousand peers.
func srdPeerDevice(name string, i int) string {
	options, own := strings.CutPrefix(srdDevice(name), "soft-lo")
	if !own || runtime.GOOS != "linux" {
		return srdDevice(name)
	}
	return fmt.Sprintf("soft-127.1.%d.%d%s", i/250, i%250+1, options)
}

// newDeviceGroup opens that many peer devices, and makes that many queue pairs on each of them.
func newDeviceGroup(o options, service verbs.QPType, devices, queues int) (f *deviceGroup, err error) {
	f = &deviceGroup{service: service, wcs: make([]verbs.WC, 256)}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	if f.hub, err = newDeviceEnd(o, srdDevice(o.device), make([]byte, srdMemory)); err != nil {
		return f, err
	}
	mem := make([]byte, srdMemory)
	own, err := f.hub.address()
	if err != nil {
		return f, err
	}
	var one verbs.QP
	if service == verbs.SRD {
		if one, err = f.hub.queuePair(service); err != nil {
			return f, err
		}
	}
	for i := range devices {
		p, err := newDeviceEnd(o, srdPeerDevice(o.device, i), mem)
		if err != nil {
			return f, err
		}
		f.peers = append(f.peers, p)
		addr, err := p.address()
		if err != nil {
			return f, err
		}
		var there, back verbs.AH
		if service == verbs.SRD {
			if there, err = f.hub.handle(addr); err != nil {
				return f, err
			}
			if back, err = p.handle(own); err != nil {
				return f, err
			}
		}
		for range queues {
			to, err := p.queuePair(service)
			if err != nil {
				return f, err
			}
			from := one
			if service == verbs.RC {
				if from, err = f.hub.queuePair(service); err != nil {
					return f, err
				}
				if err = errors.Join(connectRC(from, to, addr), connectRC(to, from, own)); err != nil {
					return f, err
				}
			}
			f.targets = append(f.targets, target{p, from, to, there, back})
		}
	}
	return f, nil
}

func connectRC(q, peer verbs.QP, addr verbs.AddressAttr) error {
	return verbstest.BringUp(q, verbs.RC, verbs.QPAttr{
		Port: srdPortNumber, Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead, Address: addr, PathMTU: 4096, DestQPN: peer.Num(),
		MaxDestReadAtomic: 16, MaxInitReadAtomic: 16, MinRNRTimer: 12, Timeout: 14, RetryCount: 7, RNRRetry: 7,
	})
}

func (f *deviceGroup) close() (err error) {
	for _, v := range append(f.peers, f.hub) {
		if v != nil {
			err = errors.Join(err, v.close())
		}
	}
	return err
}

// request adds the fields that depend on the target and the service.
func (t *target) request(wr verbs.SendWR) verbs.SendWR {
	wr.Flags = verbs.FlagSignaled
	wr.RemoteAddr, wr.RKey = t.peer.mr.Addr(), t.peer.mr.RKey()
	if t.toPeer != nil {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = t.toPeer, t.to.Num(), srdQKey
	}
	return wr
}

func (v *deviceEnd) sge(n int) []verbs.SGE {
	return []verbs.SGE{{Addr: uint64(uintptr(unsafe.Pointer(&v.mem[0]))), Length: uint32(n), LKey: v.mr.LKey()}}
}

// poll polls v, and fails if a completion is not successful.
func (f *deviceGroup) poll(v *deviceEnd) (int, error) {
	n, err := v.cq.Poll(f.wcs)
	for _, wc := range f.wcs[:n] {
		if wc.Status != verbs.StatusSuccess {
			return n, fmt.Errorf("%v: %v (vendor error %d)", f.service, wc.Status, wc.VendorError)
		}
	}
	return n, err
}

// writes keeps batches of writes of n bytes in flight, each batch to the next target, and
// returns the completions per second.
func (f *deviceGroup) writes(d time.Duration, batches, batch, n int) (float64, error) {
	wrs := make([]verbs.SendWR, batch)
	sgl := f.hub.sge(n)
	post := func() error {
		t := &f.targets[f.next]
		f.next = (f.next + 1) % len(f.targets)
		for i := range wrs {
			wrs[i] = t.request(verbs.SendWR{Op: verbs.OpWrite, SGL: sgl})
		}
		_, err := t.from.PostSend(wrs)
		return err
	}
	completed, posted := 0, 0
	poll := func() error {
		if len(f.peers) == 1 {
			// So this row needs one processor and does not depend on other threads. Several peers
			// work on their own goroutines.
			if _, err := f.poll(f.peers[0]); err != nil {
				return err
			}
		}
		k, err := f.poll(f.hub)
		completed += k
		return err
	}
	var begin time.Time
	counted := 0
	// The time starts when every target has been written to once.
	least := max(len(f.targets)*batch, 1)
	for start := time.Now(); ; {
		for posted-completed <= (batches-1)*batch {
			if err := post(); err != nil {
				return 0, err
			}
			posted += batch
		}
		if err := poll(); err != nil {
			return 0, err
		}
		switch now := time.Now(); {
		case begin.IsZero():
			if completed >= least && now.Sub(start) >= min(warmUp, 10*d) {
				begin, counted = now, completed
			}
		case now.Sub(begin) >= d:
			rate := float64(completed-counted) / now.Sub(begin).Seconds()
			for completed < posted {
				if err := poll(); err != nil {
					return 0, err
				}
			}
			return rate, nil
		}
	}
}

// roundTrip exchanges a message with one target after the other. One goroutine polls both
// ends. It returns the median.
func (f *deviceGroup) roundTrip(d time.Duration) (time.Duration, error) {
	var samples []time.Duration
	wait := func(v *deviceEnd, n int) error {
		for n > 0 {
			k, err := f.poll(v)
			if err != nil {
				return err
			}
			n -= k
		}
		return nil
	}
	begin := time.Now()
	for i := 0; i < 2*len(f.targets) || len(samples) == 0 || time.Since(begin) < d; i++ {
		t := &f.targets[i%len(f.targets)]
		if _, err := t.to.PostRecv([]verbs.RecvWR{{SGL: t.peer.sge(srdMessage)}}); err != nil {
			return 0, err
		}
		if _, err := t.from.PostRecv([]verbs.RecvWR{{SGL: f.hub.sge(srdMessage)}}); err != nil {
			return 0, err
		}
		start := time.Now()
		there := t.request(verbs.SendWR{Op: verbs.OpSend, SGL: f.hub.sge(srdMessage)})
		if _, err := t.from.PostSend([]verbs.SendWR{there}); err != nil {
			return 0, err
		}
		if err := wait(t.peer, 1); err != nil {
			return 0, err
		}
		back := verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: t.peer.sge(srdMessage)}
		if t.toHub != nil {
			back.AH, back.RemoteQPN, back.RemoteQKey = t.toHub, t.from.Num(), srdQKey
		}
		if _, err := t.to.PostSend([]verbs.SendWR{back}); err != nil {
			return 0, err
		}
		if err := wait(f.hub, 2); err != nil { // the send and the receive
			return 0, err
		}
		if i >= len(f.targets) {
			samples = append(samples, time.Since(start))
		}
		if err := wait(t.peer, 1); err != nil {
			return 0, err
		}
	}
	slices.Sort(samples)
	return samples[len(samples)/2], nil
}

// srdCase is a number of peer devices, and of queue pairs on each.
type srdCase struct{ devices, queues int }

func (s srdCase) String() string {
	if s.queues == 1 {
		return fmt.Sprintf("%d peers", s.devices)
	}
	return fmt.Sprintf("%d × %d", s.devices, s.queues)
}

// srdCases returns the cases to measure, each with at most that many queue pairs at the
// peers.
func srdCases(most int) []srdCase {
	var list []srdCase
	for _, s := range []srdCase{{1, 1}, {100, 1}, {1000, 1}, {100, 50}} {
		s.devices = min(s.devices, most)
		s.queues = min(s.queues, most/s.devices)
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// srdScenes measures RC and SRD alternately.
func srdScenes(o options) ([]*measure.Scene, error) {
	s := &measure.Scene{
		Title:  fmt.Sprintf("RC and SRD by %s; peers are devices of this process, 100 × 50 is 50 queue pairs on each of 100", srdDevice(o.device)),
		Ratios: []measure.Ratio{{Of: 1, To: 0, Title: "SRD : RC"}},
	}
	dev, err := device.Open(o.device)
	if err != nil {
		return nil, err
	}
	if dev.Driver() != "soft" {
		s.Skipped = "adapters that have SRD have no RC"
	}
	for _, service := range []verbs.QPType{verbs.RC, verbs.SRD} {
		c := measure.Contender{Name: service.String(), Own: true}
		for _, k := range srdCases(o.connections) {
			c.Measurements = append(c.Measurements, measure.Measurement{Name: k.String(), Do: func(context.Context) ([]measure.Value, error) {
				return measureGroup(o, service, k)
			}})
		}
		s.Contenders = append(s.Contenders, c)
	}
	return []*measure.Scene{s}, dev.Close()
}

func measureGroup(o options, service verbs.QPType, s srdCase) (v values, err error) {
	f, err := newDeviceGroup(o, service, s.devices, s.queues)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	small, err := f.writes(o.duration, srdBatches, srdBatch, srdMessage)
	if err != nil {
		return nil, err
	}
	large, err := f.writes(o.duration, srdInFlight, 1, srdLarge)
	if err != nil {
		return nil, err
	}
	trip, err := f.roundTrip(o.duration)
	v.more(s.String()+", 8 bytes", "M/s", small/1e6)
	v.more(s.String()+", 1 MiB", "GB/s", large*srdLarge/1e9)
	v.less(s.String()+", round trip", "µs", float64(trip.Nanoseconds())/1e3)
	return v, err
}
