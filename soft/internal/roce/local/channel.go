package local

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// Address is where one end of a channel is found: a device, and which of its parts.
type Address struct {
	Device netip.AddrPort
	Shard  int // from 0 to MaxShard
}

// MaxShard is the greatest number of a device's part.
const MaxShard = 255

// String is the address of the device, with "/" and the number of any part but the first.
func (a Address) String() string {
	text := netip.AddrPortFrom(a.Device.Addr().Unmap().WithZone(""), a.Device.Port()).String()
	if a.Shard != 0 {
		text += "/" + strconv.Itoa(a.Shard)
	}
	return text
}

// parseAddress is the inverse of String.
func parseAddress(text string) (a Address, err error) {
	device, shard, other := strings.Cut(text, "/")
	if a.Device, err = netip.ParseAddrPort(device); err != nil {
		return a, err
	}
	if other {
		n, err := strconv.ParseUint(shard, 10, 8)
		if err != nil {
			return a, err
		}
		a.Shard = int(n)
	}
	if a.String() != text {
		return a, fmt.Errorf("address %q is not written as %q", text, a)
	}
	return a, nil
}

// Compare orders addresses.
func (a Address) Compare(b Address) int {
	return cmp.Or(a.Device.Compare(b.Device), cmp.Compare(a.Shard, b.Shard))
}

// Ends are the addresses of the two ends of a channel.
type Ends struct {
	Local, Peer Address
}

// Packet is one that has come. It is the same memory for every packet of a channel.
type Packet struct {
	wire.Packet
	// Pieces are the payload, in memory that the other process can change at any time.
	// They are valid until Release.
	Pieces [][]byte
	// Intact reports, once the pieces have been copied, whether they were still what was sent:
	// they are no longer where the sender has called Revoke. Nil: they are.
	Intact func() bool
}

// Channel joins two devices. Its methods are called by one goroutine at a time, but for
// those that say otherwise.
type Channel struct {
	ends Ends
	out  producer
	in   consumer

	link   link   // of the system: the connection, and the shared memory
	loop   func() // of a channel of NewLoop: what wakes its device
	shown  shown
	seen   seen
	budget *Budget // for what is seen

	marks marks
	// stuck: the peer did not end a copy from memory that was taken back. The channel must end.
	stuck bool

	record record
	packet Packet
	intact func() bool // record.intact, bound once
}

// newChannel makes a channel of shared memory with two rings, of which the first is the
// dialler's to write.
func newChannel(ends Ends, memory []byte, dialler bool) *Channel {
	half := len(memory) / 2
	first, second := memory[:half:half], memory[half:]
	if !dialler {
		first, second = second, first
	}
	c := &Channel{
		ends: ends, out: newProducer(first), in: newConsumer(second),
		shown: shown{numbers: map[*Memory]uint32{}}, seen: seen{memories: map[uint32][]byte{}}, budget: new(Budget),
	}
	c.intact = c.record.intact
	return c
}

// NewLoop makes a channel of a device with itself, on any system: what is sent through it comes
// out of it again. It calls woken where another one wakes the peer. Serve is not for it.
func NewLoop(device Address, woken func()) *Channel {
	memory := make([]byte, controlLen+ringLen)
	c := &Channel{
		ends: Ends{device, device}, out: newProducer(memory), in: newConsumer(memory),
		shown: shown{numbers: map[*Memory]uint32{}}, seen: seen{memories: map[uint32][]byte{}}, loop: woken,
	}
	c.intact = c.record.intact
	return c
}

// SetBudget has the channel share the budget of others with the same lock. It is called before
// Serve.
func (c *Channel) SetBudget(b *Budget) { c.budget = b }

// Ends are the addresses of the devices.
func (c *Channel) Ends() Ends { return c.ends }

// Room is how many packets of any size can be sent, at most as many as are asked for. There may
// be room for more than the few that it looks for; it is 0 only if there is none.
func (c *Channel) Room(packets int) (int, error) {
	if c.stuck {
		return 0, ErrStandsStill
	}
	free, err := c.out.room(min(packets, fewPackets) * maxRecord)
	return min(free/maxRecord, packets), err
}

const fewPackets = 4

// Send writes a packet whose payload is the n bytes of pieces: at most MaxInline, or as much
// as there is in at most MaxReferences pieces that refs name, and that stay as they are until
// the peer has taken the packet, or Revoke is called for the owner. Room has said that there is
// room. The peer sees it after Flush. Send reports false if the payload cannot be read: then
// nothing is sent.
func (c *Channel) Send(p *wire.Packet, pieces [][]byte, n int, refs []Reference, owner uint32) bool {
	if refs != nil {
		c.out.putReferences(p, pieces, refs, owner)
		return true
	}
	return c.out.putInline(p, pieces, n)
}

// Revoke has an owner's packets with references be lost that the peer has not copied: once it has
// returned, their memory can be used for something else. It waits for a copy that has begun. If
// that takes too long, the packet is lost too, and Room and Receive fail with ErrStandsStill.
func (c *Channel) Revoke(owner uint32) {
	c.revoke(func(r *pendingReference) bool { return r.owner == owner })
}

// RevokeMemory is Revoke for all packets with references into mem.
func (c *Channel) RevokeMemory(mem []byte) {
	from, to := bounds([][]byte{mem})
	c.revoke(func(r *pendingReference) bool { return r.from < to && from < r.to })
}

func (c *Channel) revoke(meant func(*pendingReference) bool) {
	// What this end was copying is done, or lost: the peer may be waiting for it, too.
	c.in.endCopy()
	if !c.out.revoke(meant) {
		c.stuck = true
	}
}

// Stuck reports whether the peer did not end a copy in time, also after Close.
func (c *Channel) Stuck() bool { return c.stuck }

// Flush shows the peer what was sent, and wakes it if it asked for that.
func (c *Channel) Flush() {
	if c.out.publish() {
		c.wake()
	}
}

func (c *Channel) wake() {
	if c.loop != nil {
		c.loop()
		return
	}
	c.link.wake()
}

// AwaitRoom asks to be woken when there is room again. It reports
// false if there is room now.
func (c *Channel) AwaitRoom() (bool, error) { return c.out.awaitRoom() }

// Await asks to be woken when packets come. It reports whether none are there.
func (c *Channel) Await() (none bool) { return c.in.await() && !c.stuck }

// Receive takes a packet, or returns nil if there is none. The error matches ErrDisorder or
// ErrStandsStill: the channel is of no use any more.
func (c *Channel) Receive() (*Packet, error) {
	if c.stuck {
		return nil, ErrStandsStill
	}
	r, p := &c.record, &c.packet
	for {
		ok, err := c.in.next(r)
		if !ok {
			return nil, err
		}
		if err := p.ParseHeaders(r.headers[:r.headersLen]); err != nil {
			return nil, ErrDisorder
		}
		p.Pieces, p.Intact = p.Pieces[:0], nil
		switch {
		case !r.inline:
			p.Pieces, err = c.seen.resolve(p.Pieces, r.payload)
			p.Intact = c.intact
		case len(r.payload) > 0:
			p.Pieces = append(p.Pieces, r.payload)
		}
		if err == errForgotten {
			continue // as if it had been lost: its sender has given it up
		}
		if err == nil && len(p.Pieces) > 0 && !p.Opcode.HasPayload() {
			err = ErrDisorder
		}
		if err != nil {
			return nil, err
		}
		return p, nil
	}
}

// Owner is the owner of the packet that Receive has returned last, of a channel with itself. It is
// known of packets with references, until Revoke is called for it.
func (c *Channel) Owner() (owner uint32, known bool) {
	if c.loop == nil {
		return 0, false
	}
	for r := range c.out.pending.All() {
		if word(c.out.records, c.out.at(r.at)) == c.record.head {
			owner, known = r.owner, true // the latest: earlier ones there have been taken
		}
	}
	return owner, known
}

// Release gives back the room of the packets that were taken.
func (c *Channel) Release() {
	if c.in.release() {
		c.wake()
	}
}

// Close ends the channel: Serve returns, and CloseConnection is to be called. It is called with
// the lock held, once nothing more is sent and no packet is in use.
func (c *Channel) Close() {
	c.revoke(func(*pendingReference) bool { return true })
	if c.loop == nil {
		c.hangUp()
	}
	c.seen.memories = nil
	c.out, c.in = producer{}, consumer{}
}
