package roce

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/internal/roce/link"
)

// Faults are applied to arriving packets. Each field is a probability from 0 to 1,
// drawn for every packet.
type Faults struct {
	Loss      float64 // the packet vanishes
	Duplicate float64 // it arrives twice
	Reorder   float64 // it arrives after packets that were sent later
	Corrupt   float64 // one of its bits is flipped
	Mark      float64 // it is marked "congestion experienced", if its sender reacts to that
	// Seed makes the draws repeatable; zero is a seed like any other.
	Seed uint64
}

func (f Faults) check() error {
	for _, p := range []struct {
		name  string
		value float64
	}{{"Loss", f.Loss}, {"Duplicate", f.Duplicate}, {"Reorder", f.Reorder}, {"Corrupt", f.Corrupt}, {"Mark", f.Mark}} {
		if !(p.value >= 0 && p.value <= 1) {
			return fmt.Errorf("fault probability %s is %v, it must be from 0 to 1", p.name, p.value)
		}
	}
	return nil
}

func (f Faults) any() bool {
	return f.Loss > 0 || f.Duplicate > 0 || f.Reorder > 0 || f.Corrupt > 0 || f.Mark > 0
}

const (
	// A packet that is to come late is held until at most holdPackets more have
	// come, or for holdTime.
	holdPackets = 4
	holdTime    = time.Millisecond
)

// faultInjector applies faults to the packets of one endpoint.
type faultInjector struct {
	faults Faults
	random *rand.Rand
	held   []heldPacket
}

type heldPacket struct {
	src     netip.AddrPort
	data    []byte
	segment int
	header  link.Header
	group   netip.Addr
	after   int
	due     time.Duration
}

func newFaultInjector(f Faults, endpoint int) *faultInjector {
	return &faultInjector{faults: f, random: rand.New(rand.NewPCG(f.Seed, uint64(endpoint)))}
}

func (f *faultInjector) hit(p float64) bool { return p > 0 && f.random.Float64() < p }

// pass applies the faults to a packet and delivers what is left of it.
func (f *faultInjector) pass(d link.Datagram, now time.Duration, deliver func(link.Datagram)) {
	f.release(now, true, deliver)
	if f.hit(f.faults.Loss) {
		return
	}
	if d.Header.TrafficClass&ecnMask != 0 && f.hit(f.faults.Mark) {
		d.Header.TrafficClass |= congestionExperienced
	}
	if len(d.Data) > 0 && f.hit(f.faults.Corrupt) {
		d.Data = append([]byte(nil), d.Data...)
		bit := f.random.IntN(8 * len(d.Data))
		d.Data[bit/8] ^= 1 << (bit % 8)
	}
	if f.hit(f.faults.Duplicate) {
		deliver(d)
	}
	if f.hit(f.faults.Reorder) {
		f.held = append(f.held, heldPacket{
			src: d.Src, data: append([]byte(nil), d.Data...), segment: d.Segment, header: d.Header, group: d.Group,
			after: 1 + f.random.IntN(holdPackets), due: now + holdTime,
		})
		return
	}
	deliver(d)
}

// release delivers the held packets whose time has come; arrived says that one
// more packet has.
func (f *faultInjector) release(now time.Duration, arrived bool, deliver func(link.Datagram)) {
	kept := f.held[:0]
	for _, h := range f.held {
		if arrived {
			h.after--
		}
		if h.after <= 0 || now >= h.due {
			deliver(link.Datagram{Src: h.src, Data: h.data, Segment: h.segment, Header: h.header, Group: h.group})
			continue
		}
		kept = append(kept, h)
	}
	f.held = kept
}

// deadline is when the next held packet is due; zero means that there is none.
func (f *faultInjector) deadline() time.Duration {
	var at time.Duration
	for _, h := range f.held {
		if at == 0 || h.due < at {
			at = h.due
		}
	}
	return at
}
