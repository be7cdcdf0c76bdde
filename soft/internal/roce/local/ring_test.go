package local

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

const testRing = 1 << 18

// aligned returns memory that begins at a multiple of 8.
func aligned(n int) []byte { return make([]byte, n) }

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)*7 + seed
	}
	return b
}

func take(t *testing.T, c *consumer) *record {
	t.Helper()
	r := new(record)
	ok, err := c.next(r)
	require.NoError(t, err)
	if !ok {
		return nil
	}
	return r
}

// put writes a record with any headers.
func put(p *producer, headers []byte, payload []byte) {
	h, b, _ := p.place(kindInline, 4096, len(headers), len(payload))
	copy(h, headers)
	copy(b, payload)
}

// Records of all lengths come out as they went in, in order, while the ring wraps.
func TestRing(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	memory := aligned(controlLen + testRing)
	p, c := newProducer(memory), newConsumer(memory)
	type sent struct{ headers, payload []byte }
	var queue []sent
	for round := range 3000 {
		room, err := p.room(maxRecord)
		require.NoError(t, err)
		if room >= maxRecord {
			n := random.IntN(200)
			if random.IntN(4) == 0 {
				n = random.IntN(MaxInline + 1)
			}
			s := sent{pattern(12+random.IntN(maxHeaders-11), byte(round)), pattern(n, byte(round+1))}
			put(&p, s.headers, s.payload)
			queue = append(queue, s)
		}
		if random.IntN(3) == 0 {
			p.publish()
		}
		for random.IntN(2) == 0 {
			r := take(t, &c)
			if r == nil {
				break
			}
			require.Equal(t, queue[0].headers, r.headers[:r.headersLen])
			require.True(t, bytes.Equal(queue[0].payload, r.payload))
			queue = queue[1:]
		}
		c.release()
	}
	p.publish()
	for r := take(t, &c); r != nil; r = take(t, &c) {
		queue = queue[1:]
	}
	require.Empty(t, queue)
	require.Greater(t, p.tail, uint64(20*testRing), "the ring has wrapped often")
}

// Records are invisible before they are published, and a waiting end is woken once.
func TestRingWakes(t *testing.T) {
	memory := aligned(controlLen + testRing)
	p, c := newProducer(memory), newConsumer(memory)
	put(&p, pattern(12, 0), nil)
	require.Nil(t, take(t, &c))
	require.False(t, p.publish(), "nobody waits")
	require.False(t, c.armWakeup(), "a record is there")
	require.NotNil(t, take(t, &c))
	require.False(t, c.release())
	require.True(t, c.armWakeup())
	require.False(t, p.publish(), "nothing new")
	put(&p, pattern(12, 0), nil)
	require.True(t, p.publish())
	put(&p, pattern(12, 0), nil)
	require.False(t, p.publish(), "it was woken already")

	for {
		room, err := p.room(maxRecord)
		require.NoError(t, err)
		if room < maxRecord {
			break
		}
		put(&p, pattern(12, 0), pattern(MaxInline, 0))
	}
	p.publish()
	full, err := p.armWakeup()
	require.NoError(t, err)
	require.True(t, full)
	for take(t, &c) != nil {
	}
	require.True(t, c.release())
	full, err = p.armWakeup()
	require.NoError(t, err)
	require.False(t, full)
}

// A revoked record is skipped, before and after it was published, whether or not its head
// publishes the others.
func TestRingRevoked(t *testing.T) {
	for _, shown := range []bool{false, true} {
		memory := aligned(controlLen + testRing)
		p, c := newProducer(memory), newConsumer(memory)
		putThree := func() {
			for owner := range uint32(3) {
				p.putReferences(&wire.Packet{Opcode: wire.RCSendOnly, PSN: owner}, 4096, nil, []Reference{{1, 10, 20}}, owner)
			}
		}
		putThree()
		if shown {
			p.publish()
		}
		for _, revoked := range []uint32{0, 2} {
			p.revoke(func(r *pendingReference) bool { return r.owner == revoked })
		}
		p.publish()
		r := take(t, &c)
		require.NotNil(t, r)
		var taken wire.Packet
		require.NoError(t, taken.ParseHeaders(r.headers[:r.headersLen]))
		require.Equal(t, uint32(1), taken.PSN)
		require.True(t, r.intact())
		p.revoke(func(r *pendingReference) bool { return r.owner == 1 })
		require.False(t, r.intact(), "shown: %v", shown)
		require.Nil(t, take(t, &c))
		c.release()
		putThree()
		p.publish()
		require.NotNil(t, take(t, &c))
	}
}

// From a full ring with records of any length, the consumer takes each record once.
func TestRingFull(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	memory := aligned(controlLen + testRing)
	p, c := newProducer(memory), newConsumer(memory)
	for range 200 {
		most, n := random.IntN(MaxInline), 0
		for {
			room, err := p.room(maxRecord)
			require.NoError(t, err)
			if room < maxRecord {
				break
			}
			put(&p, pattern(12, 0), make([]byte, most))
			if most, n = random.IntN(most+1), n+1; random.IntN(8) == 0 {
				p.publish()
			}
		}
		p.publish()
		for range n {
			require.NotNil(t, take(t, &c))
		}
		require.Nil(t, take(t, &c))
		c.release()
	}
}

// There is room for the longest record where there has to be, wherever the ring ends, and the
// head of zero behind it touches nothing that has not been taken.
func TestRingLongestRecord(t *testing.T) {
	const longest = maxRecord / 2
	for _, left := range []int{recordAlign, longest - recordAlign, longest, longest + recordAlign} {
		memory := aligned(controlLen + testRing)
		p, c := newProducer(memory), newConsumer(memory)
		small := func() { put(&p, pattern(12, 7), nil) }
		for int(p.tail) < 2*testRing-left-(testRing-recordAlign-maxRecord) {
			small()
			p.publish()
			require.NotNil(t, take(t, &c))
			c.release()
			_, err := p.room(testRing)
			require.NoError(t, err)
		}
		n := 0
		for ; p.free() > maxRecord; n++ {
			small()
		}
		require.Equal(t, maxRecord, p.free())
		require.Equal(t, left, testRing-p.at(p.tail))
		put(&p, pattern(maxHeaders, 1), pattern(MaxInline, 2))
		p.publish()
		for range n {
			require.Equal(t, pattern(12, 7), take(t, &c).headers[:12])
		}
		r := take(t, &c)
		require.Equal(t, pattern(maxHeaders, 1), r.headers[:])
		require.True(t, bytes.Equal(pattern(MaxInline, 2), r.payload))
		require.Nil(t, take(t, &c))
	}
}

// The producer sees what the consumer has taken and released.
func TestRingTaken(t *testing.T) {
	memory := aligned(controlLen + testRing)
	p, c := newProducer(memory), newConsumer(memory)
	var ends []uint64
	for range 2 {
		put(&p, pattern(12, 1), pattern(8, 2))
		ends = append(ends, p.tail)
	}
	require.False(t, p.taken(ends[0]), "nothing is published")
	p.publish()
	take(t, &c)
	require.False(t, p.taken(ends[0]), "its room is not free")
	c.release()
	require.True(t, p.taken(ends[0]))
	require.False(t, p.taken(ends[1]))
	take(t, &c)
	c.release()
	require.True(t, p.taken(ends[1]))
	put(&p, pattern(12, 1), pattern(8, 2))
	require.False(t, p.taken(p.tail))
	word(memory, headAt).Store(1 << 40)
	require.True(t, p.taken(p.tail), "the ring is corrupt: nothing waits for it")
}

// A consumer that says it has taken more than there was, or that goes back, is found out.
func TestProducerBelievesNoConsumer(t *testing.T) {
	memory := aligned(controlLen + testRing)
	for _, head := range []uint64{1, 1 << 62, ^uint64(0), 1 << 20} {
		p := newProducer(memory)
		word(memory, headAt).Store(head)
		_, err := p.room(testRing + 1)
		require.ErrorIs(t, err, ErrCorrupt, "%#x", head)
		_, err = p.armWakeup()
		require.NoError(t, err) // there is room: it is not asked
	}
}

// FuzzReceive lets the other process write anything into the ring, with and without references
// to exported memory.
func FuzzReceive(f *testing.F) {
	memory := aligned(controlLen + testRing)
	p := newProducer(memory)
	for _, op := range []wire.Opcode{wire.RCWriteOnly, wire.RCReadRequest, wire.RCAcknowledge, wire.RCSendOnlyImm} {
		packet := wire.Packet{Opcode: op, DestQP: 5, PSN: 7}
		p.putInline(&packet, 4096, [][]byte{pattern(15, 1), pattern(25, 1)}, 40)
		p.putReferences(&packet, 4096, nil, []Reference{{1, 10, 20}, {1, 1, 4095}}, 9)
		p.putReferences(&packet, 4096, nil, []Reference{{1, 10, 20}}, 8)
	}
	p.revoke(func(r *pendingReference) bool { return r.owner == 8 })
	p.publish()
	f.Add(memory[controlLen : controlLen+int(p.tail)])
	f.Add([]byte{})
	f.Add(pattern(4096, 3))
	f.Fuzz(func(t *testing.T, records []byte) {
		shared := aligned(2 * (controlLen + testRing))
		c := newChannel(Ends{}, shared, true)
		c.imported.memories[1], c.imported.last = make([]byte, 4096), 3
		in := shared[controlLen+testRing:]
		copy(in[controlLen:], records)
		for range testRing {
			packet, err := c.Receive()
			if err != nil {
				require.ErrorIs(t, err, ErrCorrupt)
				return
			}
			if packet == nil {
				return
			}
			n := 0
			for _, piece := range packet.Pieces {
				n += len(piece)
			}
			require.True(t, n == 0 || packet.Opcode.HasPayload())
			if packet.Intact != nil {
				packet.Intact() // true or not: nobody else writes here
			}
		}
		t.Fatal("there is no end of packets")
	})
}

// References that lie are found out; those to memory that was freed lose the packet alone.
func TestReferences(t *testing.T) {
	s := imports{memories: map[uint32][]byte{2: pattern(4096, 0)}, last: 5}
	ref := func(memory, length uint32, offset uint64) []byte {
		b := binary.LittleEndian.AppendUint32(nil, memory)
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(b, length), offset)
	}
	s.memories[3] = make([]byte, 2*MaxInline)
	pieces, err := s.resolve(nil, append(ref(2, 10, 4086), ref(2, 4096, 0)...))
	require.NoError(t, err)
	require.Equal(t, [][]byte{s.memories[2][4086:], s.memories[2]}, pieces)
	for _, wrong := range [][]byte{
		nil, {1}, ref(2, 10, 4087), ref(2, 0, 0), ref(2, 1, 4096), ref(2, 1, ^uint64(0)), ref(2, 0xffffffff, 0), ref(6, 1, 0),
		bytes.Repeat(ref(2, 1, 0), MaxReferences+1),
		// More than a packet has, which is not to wrap around.
		ref(3, MaxInline+1, 0), append(ref(3, MaxInline, 0), ref(2, 1, 0)...), append(ref(3, 0x80000000, 0), ref(3, 0x80000001, 0)...),
	} {
		_, err := s.resolve(nil, wrong)
		require.ErrorIs(t, err, ErrCorrupt, "%x", wrong)
	}
	_, err = s.resolve(nil, ref(4, 1, 0))
	require.ErrorIs(t, err, errFreed)
}

// Revoking memory waits for a copy that the consumer has begun, but not for ever.
func TestRingRevokeAwaitsTheCopy(t *testing.T) {
	memory := aligned(controlLen + testRing)
	p, c := newProducer(memory), newConsumer(memory)
	all := func(*pendingReference) bool { return true }
	p.putReferences(&wire.Packet{Opcode: wire.RCSendOnly}, 4096, nil, []Reference{{1, 10, 20}}, 1)
	p.putReferences(&wire.Packet{Opcode: wire.RCSendOnly}, 4096, nil, []Reference{{1, 10, 20}}, 2)
	p.publish()
	first := take(t, &c)
	var copied atomic.Bool
	go func() {
		for first.head.Load()>>32&0xff != kindRevoked {
			runtime.Gosched()
		}
		copied.Store(true)
		first.intact()
	}()
	if p.revoke(func(r *pendingReference) bool { return r.owner == 1 }) { // else the machine was too busy
		require.True(t, copied.Load(), "it did not wait")
	}
	require.NotNil(t, take(t, &c))
	require.False(t, p.revoke(all), "the copy does not end")
	require.Nil(t, take(t, &c), "which ends it")

	p.putReferences(&wire.Packet{Opcode: wire.RCSendOnly}, 4096, nil, []Reference{{1, 10, 20}}, 3)
	p.publish()
	require.NotNil(t, take(t, &c))
	require.True(t, p.revoke(func(r *pendingReference) bool { return r.owner == 4 }), "of another owner: there is nothing to wait for")
}
