package transport

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// unreliableRun sends numbered messages from one node to another, each of a length and
// of bytes that follow from its number, and checks those that arrive.
type unreliableRun struct {
	*network
	kind          verbs.QPType
	from, to      *node
	local, remote *arena
	messages      int
	posted        int
	completed     int
	arrived       []int
	maxLen        int
}

const (
	unreliableSlots = 8
	unreliableSlot  = 2048
	receiveAt       = unreliableSlots * unreliableSlot // in the receiver's memory, behind what is written
)

func newUnreliableRun(t testing.TB, kind verbs.QPType, messages int, seed uint64, f faults) *unreliableRun {
	o := options{kind: kind, psn: 0xffffe0, depth: unreliableSlots, recvDepth: unreliableSlots, window: 32 << 10}.defaults()
	c := &unreliableRun{network: newNetwork(t, seed, f), kind: kind, messages: messages, maxLen: 1500}
	if kind == verbs.UD {
		c.maxLen = 256
	}
	c.from, c.to = c.attach(newEnd(t, clientQPN, NewMemory(), o)), c.attach(newEnd(t, serverQPN, NewMemory(), o))
	c.join(c.from, c.to)
	c.local = newArena(t, c.from.memory, localKey, localBase, unreliableSlots*unreliableSlot, everyAccess)
	c.remote = newArena(t, c.to.memory, remoteKey, remoteBase, 2*receiveAt, everyAccess)
	c.from.ready(o.attr(serverQPN, o.psn, 0))
	c.to.ready(o.attr(clientQPN, 0, o.psn))
	for i := range unreliableSlots {
		c.postReceive(i)
	}
	c.to.wake = c.check
	return c
}

// content is what message number id holds.
func (c *unreliableRun) content(id int) []byte {
	b := pattern(make([]byte, 4+id*7919%(c.maxLen-3)), id)
	binary.BigEndian.PutUint32(b, uint32(id))
	return b
}

// run posts as fast as requests complete, and lets everything happen.
func (c *unreliableRun) run() {
	c.send()
	c.from.pump()
	if c.completed < c.messages {
		c.After(time.Microsecond, c.run)
	}
}

func (c *unreliableRun) send() {
	c.completed += len(c.from.end.send.take())
	for c.posted < c.messages && c.from.qp.sq.Len() < unreliableSlots {
		id := c.posted
		b := c.content(id)
		at := id % unreliableSlots * unreliableSlot
		copy(c.local.Mem[at:], b)
		half := len(b) / 2
		wr := verbs.SendWR{
			ID: uint64(id), Op: verbs.OpSendImm, Flags: verbs.FlagSignaled, Imm: uint32(id),
			SGL: []verbs.SGE{c.local.sge(at, half), c.local.sge(at+half, len(b)-half)},
			AH:  testAH{c.from.end}, RemoteQPN: serverQPN, RemoteQKey: testKey,
			RemoteAddr: c.remote.Base + uint64(at), RKey: c.remote.Key,
		}
		if c.kind == verbs.UC && id%3 == 0 {
			wr.Op = verbs.OpWriteImm
		}
		c.from.post(wr)
		c.posted++
	}
}

func (c *unreliableRun) postReceive(slot int) {
	at := receiveAt + slot*unreliableSlot
	clear(c.remote.Mem[at : at+unreliableSlot])
	c.to.postRecv(verbs.RecvWR{ID: uint64(slot), SGL: []verbs.SGE{c.remote.sge(at, 100), c.remote.sge(at+100, unreliableSlot-100)}})
}

func (c *unreliableRun) check() {
	for _, wc := range c.to.recv.take() {
		id := int(wc.Imm)
		want := c.content(id)
		at, head := receiveAt+int(wc.ID)*unreliableSlot, 0
		expected := verbs.WC{ID: wc.ID, Opcode: verbs.WCRecv, HasImm: true, Imm: wc.Imm, QPN: serverQPN}
		switch {
		case c.kind == verbs.UD:
			head = verbs.GRHLen
			expected.SrcQPN, expected.HasGRH, expected.IPv4 = clientQPN, true, true // its header is all zeros
		case id%3 == 0:
			expected.Opcode = verbs.WCRecvWriteImm
			at = id % unreliableSlots * unreliableSlot
		}
		expected.Bytes = uint32(head + len(want))
		require.Equal(c.t, expected, wc)
		require.True(c.t, bytes.Equal(want, c.remote.Mem[at+head:at+head+len(want)]), "message %d is not whole", id)
		c.arrived = append(c.arrived, id)
		c.postReceive(int(wc.ID))
	}
}

// TestUnreliableModel: under any network faults, delivered messages are complete and the
// sender is not delayed.
func TestUnreliableModel(t *testing.T) {
	const messages = 2000
	for _, kind := range []verbs.QPType{verbs.UC, verbs.UD} {
		for name, f := range map[string]faults{
			"none": {}, "loss": {Loss: 0.1}, "duplication": {Duplicate: 0.2}, "reordering": {Reorder: 0.1},
			"corruption": {Corrupt: 0.05}, "all": {Loss: 0.1, Duplicate: 0.05, Reorder: 0.1, Corrupt: 0.01},
		} {
			t.Run(fmt.Sprintf("%v, %s", kind, name), func(t *testing.T) {
				t.Parallel()
				for seed := range uint64(2) {
					c := newUnreliableRun(t, kind, messages, seed, f)
					c.run()
					c.network.run(time.Minute)
					require.Equal(t, messages, c.completed, "requests completed")
					c.remote.requireGuards(t)
					require.Empty(t, c.to.events)
					require.Equal(t, unreliableSlots, c.to.rq.Len()+len(c.heldReceive()), "receives that did not complete")
					distinct := slices.Compact(slices.Sorted(slices.Values(c.arrived)))
					switch name {
					case "none":
						require.Len(t, c.arrived, messages)
						require.Equal(t, distinct, c.arrived, "in order, once")
					case "loss":
						require.Equal(t, distinct, c.arrived, "in order, once")
						require.Less(t, len(distinct), messages)
					case "duplication":
						require.Greater(t, len(c.arrived), len(distinct))
						if kind == verbs.UD { // elsewhere a packet that comes twice breaks its message
							require.Len(t, distinct, messages)
						}
					}
					require.Greater(t, len(distinct), messages/3, "messages that came through")
				}
			})
		}
	}
}

// heldReceive is the receive that a broken message has left to the next.
func (c *unreliableRun) heldReceive() []uint64 {
	if c.to.qp.inReceive {
		return []uint64{c.to.qp.current.id}
	}
	return nil
}
