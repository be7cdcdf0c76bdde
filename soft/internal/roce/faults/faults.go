// Package faults applies faults to arriving packets: loss, disorder, corruption, marks and delay.
package faults

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/soft/internal/roce/congestion"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// Faults are faults of the network, for tests. Loss to Mark are probabilities from 0 to 1,
// drawn for every packet that arrives. A Loss of 1 loses every packet.
type Faults struct {
	Loss      float64 // the packet vanishes
	Duplicate float64 // it arrives twice
	Reorder   float64 // it arrives after packets that were sent later
	Corrupt   float64 // one of its bits is flipped
	// Mark: it is marked "congestion experienced", as by a switch whose queue grows, if its
	// sender reacts to that.
	Mark float64
	// Seed makes the draws repeatable; zero is a seed like any other.
	Seed uint64

	// Delay is how much later packets arrive: from 0 to a minute. At most 64 MiB are under
	// way.
	Delay time.Duration
	// Rate is the number of bytes of UDP payload that arrive in a second. Up to 1 MiB waits;
	// packets beyond that are lost. Zero: no limit.
	Rate int
}

// Check returns an error if a value is out of its range.
func Check(f Faults) error {
	for _, p := range []struct {
		name  string
		value float64
	}{{"Loss", f.Loss}, {"Duplicate", f.Duplicate}, {"Reorder", f.Reorder}, {"Corrupt", f.Corrupt}, {"Mark", f.Mark}} {
		if !(p.value >= 0 && p.value <= 1) {
			return fmt.Errorf("fault probability %s is %v, must be from 0 to 1", p.name, p.value)
		}
	}
	switch {
	case f.Delay < 0 || f.Delay > maxDelay:
		return fmt.Errorf("fault Delay is %v, must be from 0 to %v", f.Delay, maxDelay)
	case f.Rate < 0:
		return fmt.Errorf("fault Rate is %d bytes per second, must not be negative", f.Rate)
	}
	return nil
}

// Any reports whether there is a fault.
func Any(f Faults) bool {
	return f.Loss > 0 || f.Duplicate > 0 || f.Reorder > 0 || f.Corrupt > 0 || f.Mark > 0 || f.Delay > 0 || f.Rate > 0
}

const (
	// A reordered packet is held until up to holdPackets others have arrived, or for holdTime.
	holdPackets = 4
	holdTime    = time.Millisecond
	maxDelay    = time.Minute
	// maxBacklog is how many bytes wait for Rate, as in a switch. Packets beyond it are lost.
	maxBacklog = 1 << 20
	// maxDelayed is how many bytes Delay and Rate can hold. Packets beyond it are lost.
	maxDelayed = 64 << 20
)

// Settings are the faults of a device.
type Settings struct {
	All   Faults
	Peers map[netip.Addr]Faults // faults by address, instead of All
}

// Of returns the faults of packets from an address.
func (s *Settings) Of(peer netip.Addr) Faults {
	if f, own := s.Peers[peer.Unmap().WithZone("")]; own {
		return f
	}
	return s.All
}

// Injector applies faults to the packets of one endpoint.
type Injector struct {
	all   *path // nil: none
	peers map[netip.Addr]*path
	order []netip.Addr // the keys of peers, in the order in which Release asks them
}

// New returns an injector for the endpoint with that number, or nil if there are no faults.
func New(s *Settings, endpoint int) *Injector {
	if !Any(s.All) && len(s.Peers) == 0 {
		return nil
	}
	i := &Injector{peers: make(map[netip.Addr]*path, len(s.Peers))}
	if Any(s.All) {
		i.all = newPath(s.All, endpoint)
	}
	for addr, f := range s.Peers {
		i.peers[addr] = newPath(f, endpoint)
	}
	i.order = slices.SortedFunc(maps.Keys(i.peers), netip.Addr.Compare)
	return i
}

// Changed applies changed faults for packets from an address, or of the device if peer is not
// valid. It returns the held packets that this concerns. Others stay held, and their draws go
// on.
func (i *Injector) Changed(s *Settings, peer netip.Addr, endpoint int) (held []link.Datagram) {
	if !peer.IsValid() {
		if i.all != nil {
			held = i.all.takeHeld(peer)
		}
		i.all = nil
		if Any(s.All) {
			i.all = newPath(s.All, endpoint)
		}
		return held
	}
	if own := i.peers[peer]; own != nil {
		held = own.takeHeld(peer)
	} else if i.all != nil {
		held = i.all.takeHeld(peer)
	}
	if f, own := s.Peers[peer]; own {
		i.peers[peer] = newPath(f, endpoint)
	} else {
		delete(i.peers, peer)
	}
	i.order = slices.SortedFunc(maps.Keys(i.peers), netip.Addr.Compare)
	return held
}

// Any reports whether there are faults for the device, or faults of their own for any peer.
func (i *Injector) Any() bool { return i.all != nil || len(i.peers) > 0 }

// Pass applies the faults to a packet, and delivers what remains of it.
func (i *Injector) Pass(d link.Datagram, now time.Duration, deliver func(link.Datagram)) {
	l, own := i.peers[d.Src.Addr()]
	if !own {
		l = i.all
	}
	if l == nil {
		deliver(d)
		return
	}
	l.pass(d, now, deliver)
}

// Release delivers the held packets whose time has come.
func (i *Injector) Release(now time.Duration, deliver func(link.Datagram)) {
	if i.all != nil {
		i.all.release(now, deliver)
	}
	for _, addr := range i.order {
		i.peers[addr].release(now, deliver)
	}
}

// Deadline returns when the next held packet is due; zero: there is none.
func (i *Injector) Deadline() (at time.Duration) {
	if i.all != nil {
		at = i.all.deadline()
	}
	for _, l := range i.peers {
		if due := l.deadline(); due != 0 && (at == 0 || due < at) {
			at = due
		}
	}
	return at
}

// path applies one set of faults.
type path struct {
	faults  Faults
	random  *rand.Rand
	delayed fifo.Queue[heldPacket]
	bytes   int           // in delayed
	free    time.Duration // when Rate lets the next packet start
	held    []heldPacket  // for Reorder
}

type heldPacket struct {
	datagram link.Datagram // with a copy of the data
	after    int           // packets that arrive before it
	due      time.Duration
}

func newPath(f Faults, endpoint int) *path {
	return &path{faults: f, random: rand.New(rand.NewPCG(f.Seed, uint64(endpoint)))}
}

func (l *path) hit(p float64) bool { return p > 0 && l.random.Float64() < p }

func (l *path) pass(d link.Datagram, now time.Duration, deliver func(link.Datagram)) {
	if l.hit(l.faults.Loss) {
		return
	}
	if l.hit(l.faults.Mark) {
		d.Header.TrafficClass = congestion.Mark(d.Header.TrafficClass)
	}
	if len(d.Data) > 0 && l.hit(l.faults.Corrupt) {
		d.Data = append([]byte(nil), d.Data...)
		bit := l.random.IntN(8 * len(d.Data))
		d.Data[bit/8] ^= 1 << (bit % 8)
	}
	if l.hit(l.faults.Duplicate) {
		l.carry(d, now, deliver)
	}
	l.carry(d, now, deliver)
}

// carry delays a packet by Delay and Rate.
func (l *path) carry(d link.Datagram, now time.Duration, deliver func(link.Datagram)) {
	if l.faults.Delay == 0 && l.faults.Rate == 0 {
		l.arrive(d, now, deliver)
		return
	}
	l.free = max(l.free, now)
	if l.bytes+len(d.Data) > maxDelayed || l.faults.Rate > 0 && (l.free-now).Seconds()*float64(l.faults.Rate) > maxBacklog {
		return
	}
	if l.faults.Rate > 0 {
		l.free += time.Duration(math.Ceil(float64(len(d.Data)) / float64(l.faults.Rate) * float64(time.Second)))
	}
	d.Data = append([]byte(nil), d.Data...)
	l.bytes += len(d.Data)
	l.delayed.Push(heldPacket{datagram: d, due: l.free + l.faults.Delay})
}

// arrive delivers a packet, or holds it until others have arrived.
func (l *path) arrive(d link.Datagram, now time.Duration, deliver func(link.Datagram)) {
	l.releaseHeld(now, true, deliver)
	if l.hit(l.faults.Reorder) {
		d.Data = append([]byte(nil), d.Data...)
		l.held = append(l.held, heldPacket{datagram: d, after: 1 + l.random.IntN(holdPackets), due: now + holdTime})
		return
	}
	deliver(d)
}

func (l *path) release(now time.Duration, deliver func(link.Datagram)) {
	for l.delayed.Len() > 0 && l.delayed.Front().due <= now {
		d := l.delayed.Pop().datagram
		l.bytes -= len(d.Data)
		l.arrive(d, now, deliver)
	}
	l.releaseHeld(now, false, deliver)
}

// releaseHeld delivers the packets held for Reorder that are due. arrived: another packet has
// arrived.
func (l *path) releaseHeld(now time.Duration, arrived bool, deliver func(link.Datagram)) {
	kept := l.held[:0]
	for _, h := range l.held {
		if arrived {
			h.after--
		}
		if h.after <= 0 || now >= h.due {
			deliver(h.datagram)
			continue
		}
		kept = append(kept, h)
	}
	l.held = kept
}

// takeHeld removes and returns the held packets of a peer, or all if peer is not valid. Those
// held for Reorder are older, and come first.
func (l *path) takeHeld(peer netip.Addr) (taken []link.Datagram) {
	kept := l.held[:0]
	for _, h := range l.held {
		if peer.IsValid() && h.datagram.Src.Addr() != peer {
			kept = append(kept, h)
			continue
		}
		taken = append(taken, h.datagram)
	}
	l.held = kept
	for range l.delayed.Len() {
		h := l.delayed.Pop()
		if peer.IsValid() && h.datagram.Src.Addr() != peer {
			l.delayed.Push(h)
			continue
		}
		l.bytes -= len(h.datagram.Data)
		taken = append(taken, h.datagram)
	}
	return taken
}

func (l *path) deadline() (at time.Duration) {
	if l.delayed.Len() > 0 {
		at = l.delayed.Front().due
	}
	for _, h := range l.held {
		if at == 0 || h.due < at {
			at = h.due
		}
	}
	return at
}
