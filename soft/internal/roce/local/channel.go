package local

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// Address is the address of one end of a channel: a device, and one of its shards.
type Address struct {
	Device netip.AddrPort
	Shard  int // from 0 to MaxShard
}

// MaxShard is the greatest index of a shard.
const MaxShard = 255

// String returns the device's address, followed by "/" and the index of the shard if it is not
// 0.
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
		return a, fmt.Errorf("address %q is not in the form %q", text, a)
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

// Packet is a received packet. All packets of a channel use the same memory.
type Packet struct {
	wire.Packet
	MTU verbs.MTU // the sender's path MTU, as the sender says
	// Pieces are the payload, in memory that the other process can change at any time. They
	// are valid until Release.
	Pieces [][]byte
	// Intact reports, once the pieces have been copied, whether they still were what was sent.
	// They are not if the sender has called Revoke. Nil: they are.
	Intact func() bool
}

// Channel joins two devices. Unless noted otherwise, one goroutine at a time may call its
// methods.
type Channel struct {
	ends Ends
	out  producer
	in   consumer

	link     connection // the system's part: the connection, and the shared memory
	loop     func()     // set by NewLoop: wakes the device
	exported exports
	imported imports
	budget   *Budget // for the mappings in imported

	liveness liveness
	// stalled: the peer did not finish a copy from revoked memory. The channel must end.
	stalled bool

	record record
	packet Packet
	intact func() bool // record.intact, bound once
}

// newChannel makes a channel of shared memory with two rings. The dialler writes to the first.
func newChannel(ends Ends, memory []byte, dialler bool) *Channel {
	half := len(memory) / 2
	first, second := memory[:half:half], memory[half:]
	if !dialler {
		first, second = second, first
	}
	c := &Channel{
		ends: ends, out: newProducer(first), in: newConsumer(second),
		exported: exports{numbers: map[*Memory]uint32{}}, imported: imports{memories: map[uint32][]byte{}}, budget: new(Budget),
	}
	c.intact = c.record.intact
	return c
}

// NewLoop makes a channel of a device with itself, on any system: it receives the packets that
// are sent through it. It calls wake where other channels wake the peer. Serve must not be
// called.
func NewLoop(device Address, wake func()) *Channel {
	memory := make([]byte, controlLen+ringLen)
	c := &Channel{
		ends: Ends{device, device}, out: newProducer(memory), in: newConsumer(memory),
		exported: exports{numbers: map[*Memory]uint32{}}, imported: imports{memories: map[uint32][]byte{}}, loop: wake,
	}
	c.intact = c.record.intact
	return c
}

// SetBudget makes the channel use a budget that it shares with other channels under the same
// lock. It is called before Serve.
func (c *Channel) SetBudget(b *Budget) { c.budget = b }

// Ends returns the addresses of the two ends.
func (c *Channel) Ends() Ends { return c.ends }

// Room returns how many packets of any size can be sent, at most the number asked for. It may
// return less than there is room for, but 0 only if there is no room.
func (c *Channel) Room(packets int) (int, error) {
	if c.stalled {
		return 0, ErrStalled
	}
	free, err := c.out.room(min(packets, fewPackets) * maxRecord)
	return min(free/maxRecord, packets), err
}

const fewPackets = 4

// Send writes a packet of a queue pair with that path MTU, whose payload is the n bytes of
// pieces. Without refs, these are at most MaxInline. With refs, the payload is in at most
// MaxReferences pieces, which refs name; they must not change until the peer has taken the
// packet, or Revoke is called for the owner. The caller has called Room, and there is room. The
// peer sees the packet after Flush. Send reports false, and sends nothing, if the payload cannot
// be read.
func (c *Channel) Send(p *wire.Packet, mtu verbs.MTU, pieces [][]byte, n int, refs []Reference, owner uint32) bool {
	if refs != nil {
		c.out.putReferences(p, mtu, pieces, refs, owner)
		return true
	}
	return c.out.putInline(p, mtu, pieces, n)
}

// Sent returns the position after the last packet that was sent, for Taken.
func (c *Channel) Sent() uint64 { return c.out.tail }

// Taken reports whether the peer has taken all packets up to a position.
func (c *Channel) Taken(position uint64) bool { return c.out.taken(position) }

// Revoke discards an owner's packets with references that the peer has not copied yet. Once it
// returns, their memory can be reused. It waits for a copy that is in progress. If that takes
// too long, the packet is lost too, and Room and Receive fail with ErrStalled.
func (c *Channel) Revoke(owner uint32) {
	c.revoke(func(r *pendingReference) bool { return r.owner == owner })
}

// RevokeMemory is Revoke for all packets with references into mem.
func (c *Channel) RevokeMemory(mem []byte) {
	from, to := bounds([][]byte{mem})
	c.revoke(func(r *pendingReference) bool { return r.from < to && from < r.to })
}

func (c *Channel) revoke(matches func(*pendingReference) bool) {
	// End or discard this end's own copy: the peer may be waiting for it, too.
	c.in.endCopy()
	if !c.out.revoke(matches) {
		c.stalled = true
	}
}

// Stalled reports whether the peer did not finish a copy in time. It may be called after Close.
func (c *Channel) Stalled() bool { return c.stalled }

// Flush makes packets that were sent visible to the peer, and wakes it if it asked for that.
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

// ArmRoomWakeup asks to be woken when there is room again. It reports false if there is room now.
func (c *Channel) ArmRoomWakeup() (bool, error) { return c.out.armWakeup() }

// ArmWakeup asks to be woken when packets come. It reports true if there are none yet.
func (c *Channel) ArmWakeup() (none bool) { return c.in.armWakeup() && !c.stalled }

// Receive returns the next packet, or nil if there is none. After an error, which matches
// ErrCorrupt or ErrStalled, the channel cannot be used any more.
func (c *Channel) Receive() (*Packet, error) {
	if c.stalled {
		return nil, ErrStalled
	}
	r, p := &c.record, &c.packet
	for {
		ok, err := c.in.next(r)
		if !ok {
			return nil, err
		}
		if err := p.ParseHeaders(r.headers[:r.headersLen]); err != nil {
			return nil, ErrCorrupt
		}
		p.MTU, p.Pieces, p.Intact = r.mtu, p.Pieces[:0], nil
		switch {
		case !r.inline:
			p.Pieces, err = c.imported.resolve(p.Pieces, r.payload)
			p.Intact = c.intact
		case len(r.payload) > 0:
			p.Pieces = append(p.Pieces, r.payload)
		}
		if err == errFreed {
			continue // like a lost packet: its sender has abandoned it
		}
		if err == nil && len(p.Pieces) > 0 && !p.Opcode.HasPayload() {
			err = ErrCorrupt
		}
		if err != nil {
			return nil, err
		}
		return p, nil
	}
}

// Owner returns the owner of the packet that Receive returned last, for a channel made by
// NewLoop. It is known for packets with references, until Revoke is called for the owner.
func (c *Channel) Owner() (owner uint32, known bool) {
	if c.loop == nil {
		return 0, false
	}
	for r := range c.out.pending.All() {
		if word(c.out.records, c.out.at(r.at)) == c.record.head {
			owner, known = r.owner, true // the latest one: earlier ones at this place have been taken
		}
	}
	return owner, known
}

// Release frees the room of the packets that were received.
func (c *Channel) Release() {
	if c.in.release() {
		c.wake()
	}
}

// Close ends the channel: Serve returns, and the caller then calls CloseConnection. Close is
// called with the lock held, once nothing more is sent and no packet is in use.
func (c *Channel) Close() {
	c.revoke(func(*pendingReference) bool { return true })
	if c.loop == nil {
		c.shutdown()
	}
	c.imported.memories = nil
	c.out, c.in = producer{}, consumer{}
}
