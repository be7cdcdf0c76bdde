package capture

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

var ends = [2]netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:50000"), netip.MustParseAddrPort("10.0.0.2:50001")}

const testMTU = 256

// script writes a capture, packet by packet.
type script struct {
	frames  []frame
	now     time.Duration
	tos     byte
	from    direction
	bad     bool   // the ICRC
	payload []byte // nil: zeros
}

// packet adds a packet of size bytes of payload, a microsecond after the one before. It goes to
// queue pair 0x22 of the second end, or 0x11 of the first.
func (s *script) packet(side int, p wire.Packet, size int) {
	p.MigReq, p.PKey = true, 0xffff
	if p.DestQP == 0 {
		p.DestQP = [2]uint32{0x22, 0x11}[side]
	}
	p.Pad = uint8(-size & 3)
	src, dst := ends[side], netip.AddrPortFrom(ends[1-side].Addr(), wire.UDPPort)
	b := make([]byte, p.Opcode.HeaderLen()+size+int(p.Pad)+wire.ICRCLen)
	copy(b[p.PutHeaders(b):], s.payload)
	flow, end := wire.NewFlow(src, dst), len(b)-wire.ICRCLen
	wire.PutICRC(b[end:], wire.ICRCFinish(wire.ICRCUpdate(flow.ICRCStart(0, len(b), b[:wire.BTHLen]), b[wire.BTHLen:end])))
	if s.bad {
		b[end-1] ^= 0x10
	}
	s.datagram(src, dst, b)
}

func (s *script) datagram(src, dst netip.AddrPort, b []byte) {
	ip := []byte{0x45, s.tos, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0}
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(b)))
	from, to := src.Addr().As4(), dst.Addr().As4()
	ip = append(append(ip, from[:]...), to[:]...)
	ip = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(ip, src.Port()), dst.Port())
	ip = append(binary.BigEndian.AppendUint16(ip, uint16(8+len(b))), 0, 0)
	s.now += time.Microsecond
	s.frames = append(s.frames, frame{at: int64(s.now), data: append(ip, b...), from: s.from})
}

// write adds a packet of a long write, with number psn.
func (s *script) write(psn uint32) {
	s.packet(0, wire.Packet{Opcode: wire.RCWriteMiddle, PSN: psn}, testMTU)
}

// only adds an empty write.
func (s *script) only(psn uint32) {
	s.packet(0, wire.Packet{Opcode: wire.RCWriteOnly, PSN: psn, AckReq: true}, 0)
}

func (s *script) ack(psn uint32) { s.answer(psn, wire.Ack(31)) }

func (s *script) answer(psn uint32, syndrome wire.Syndrome) {
	s.packet(1, wire.Packet{Opcode: wire.RCAcknowledge, PSN: psn, AETH: wire.AETH{Syndrome: syndrome}}, 0)
}

// message adds a message of the connection manager.
func (s *script) message(side int, b []byte) {
	s.payload = b
	s.packet(side, wire.Packet{Opcode: wire.UDSendOnly, DestQP: 1, DETH: wire.DETH{QKey: 0x80010000, SrcQP: 1}}, len(b))
	s.payload = nil
}

// file is the capture as a pcap file, cooked if directions are known.
func (s *script) file() []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b23c4d)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = le.AppendUint32(le.AppendUint32(b, 65535), linkCooked)
	for _, f := range s.frames {
		cooked := []byte{0, [...]byte{unknown: 3, inbound: 0, outbound: 4}[f.from], 0xff, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0}
		b = le.AppendUint32(le.AppendUint32(b, uint32(f.at/1e9)), uint32(f.at%1e9))
		n := uint32(len(cooked) + len(f.data))
		b = append(append(le.AppendUint32(le.AppendUint32(b, n), n), cooked...), f.data...)
	}
	return b
}

func (s *script) report(t testing.TB) *Report {
	r, err := Analyse(bytes.NewReader(s.file()))
	require.NoError(t, err)
	return r
}

// connection is the only connection.
func (s *script) connection(t testing.TB) *Connection {
	r := s.report(t)
	require.Len(t, r.Connections, 1)
	return r.Connections[0]
}

// TestCauses: each fault alone, as it looks at the sender, the receiver or between them.
func TestCauses(t *testing.T) {
	const wait = 5 * time.Millisecond
	sequence := wire.Nak(wire.NakSequence)
	for name, c := range map[string]struct {
		make      func(s *script)
		want      Direction // of the first end; packets, bytes, operations and round trips apart
		diagnosis string
	}{
		"nothing": {func(s *script) { s.write(1); s.write(2); s.ack(2) }, Direction{}, ""},
		"lost behind, sequence NAK": {func(s *script) {
			s.write(1)
			s.write(2)
			s.write(3)
			s.ack(1)
			s.answer(2, sequence)
			s.write(2)
			s.write(3)
			s.ack(3)
		}, Direction{LostAfter: 1, Repeats: Repeats{Sequence: 2}}, "behind the place"},
		"lost before, sequence NAK": {func(s *script) {
			s.write(1)
			s.write(3)
			s.answer(2, sequence)
			s.write(2)
			s.write(3)
			s.ack(3)
		}, Direction{LostBefore: 1, Gaps: 1, Repeats: Repeats{Sequence: 2}}, "before the place"},
		"lost twice": {func(s *script) {
			s.write(1)
			s.write(2)
			s.write(3)
			s.answer(2, sequence)
			s.write(2)
			s.write(3)
			s.answer(2, sequence)
			s.write(2)
			s.write(3)
			s.ack(3)
		}, Direction{LostAfter: 2, Repeats: Repeats{Sequence: 4}}, "lost or reordered at least 2 of 7"},
		"time-out": {func(s *script) {
			s.only(1)
			s.ack(1)
			s.only(2)
			s.now += wait
			s.only(2)
			s.ack(2)
		}, Direction{Repeats: Repeats{TimeOut: 1}}, "repeated 1 packets after a time-out"},
		"acknowledgement lost": {func(s *script) {
			s.only(1)
			s.ack(1)
			s.now += wait
			s.only(1)
			s.ack(1)
		}, Direction{Repeats: Repeats{AckLost: 1}}, "that 10.0.0.2 had acknowledged"},
		"receiver not ready": {func(s *script) {
			for range 3 {
				s.only(1)
				s.answer(1, wire.RNRNak(12))
				s.now += wait
			}
			s.only(1)
			s.ack(1)
		}, Direction{Repeats: Repeats{RNR: 3}}, "was not ready 3 times"},
		"duplicate": {func(s *script) {
			s.write(1)
			s.now += 10 * time.Microsecond
			s.ack(1)
			s.write(2)
			s.write(2)
			s.write(3)
			s.ack(3)
		}, Direction{Repeats: Repeats{Duplicated: 1}}, "are there twice"},
		"overtaken": {func(s *script) { s.write(1); s.write(3); s.write(2); s.write(4); s.ack(4) },
			Direction{Gaps: 1, Reordered: 1}, "were overtaken"},
		"overtaken, sequence NAK": {func(s *script) {
			s.write(1)
			s.write(3)
			s.answer(2, sequence)
			s.write(2) // the first copy
			s.now += wait
			s.write(2)
			s.write(3)
			s.ack(3)
		}, Direction{Gaps: 1, Reordered: 1, Repeats: Repeats{Sequence: 2}}, "were overtaken"},
		"the capture lacks one": {func(s *script) { s.write(1); s.write(3); s.ack(3) }, Direction{Gaps: 1, Unrecorded: 1}, ""},
		"changed": {func(s *script) {
			s.write(1)
			s.bad = true
			s.write(2)
		}, Direction{ICRCErrors: 1}, "1 packets from 10.0.0.1 to 10.0.0.2 were changed"},
		"marked": {func(s *script) {
			s.tos = 3
			s.write(1)
			s.tos = 0
			s.packet(1, wire.Packet{Opcode: wire.CNP}, 0)
			s.ack(1)
		}, Direction{Marked: 1}, "1 of 1 packets were marked (ECN), and 10.0.0.2 sent"},
		"wrong key": {func(s *script) { s.only(1); s.answer(1, wire.Nak(wire.NakRemoteAccess)) }, Direction{}, "remote key is wrong"},
		"invalid":   {func(s *script) { s.only(1); s.answer(1, wire.Nak(wire.NakInvalidRequest)) }, Direction{}, "as invalid"},
		"failed":    {func(s *script) { s.only(1); s.answer(1, wire.Nak(wire.NakRemoteOperation)) }, Direction{}, "could not execute"},
		"peer gone": {func(s *script) {
			s.only(1)
			s.ack(1)
			s.only(2)
			for range 3 {
				s.now += wait
				s.only(2)
			}
		}, Direction{Repeats: Repeats{TimeOut: 3}}, "got no answer any more from 10.0.0.2: its program ended"},
		"small MTU on the path": {func(s *script) {
			s.only(1)
			s.ack(1)
			s.write(2)
			for range 3 {
				s.now += wait
				s.write(2)
			}
		}, Direction{Repeats: Repeats{TimeOut: 3}}, "a link on the path has a smaller MTU"},
		"response lost": {func(s *script) {
			read := func(psn, length uint32) {
				s.packet(0, wire.Packet{Opcode: wire.RCReadRequest, PSN: psn, RETH: wire.RETH{Length: length}}, 0)
			}
			s.packet(0, wire.Packet{Opcode: wire.RCWriteFirst, PSN: 0}, testMTU) // names the path MTU
			read(1, 4*testMTU)
			s.packet(1, wire.Packet{Opcode: wire.RCReadResponseFirst, PSN: 1}, testMTU)
			s.packet(1, wire.Packet{Opcode: wire.RCReadResponseMiddle, PSN: 3}, testMTU)
			s.packet(1, wire.Packet{Opcode: wire.RCReadResponseLast, PSN: 4}, testMTU)
			s.now += wait
			read(2, 3*testMTU)
			s.packet(1, wire.Packet{Opcode: wire.RCReadResponseFirst, PSN: 2}, testMTU)
			s.packet(1, wire.Packet{Opcode: wire.RCReadResponseMiddle, PSN: 3}, testMTU)
			s.packet(1, wire.Packet{Opcode: wire.RCReadResponseLast, PSN: 4}, testMTU)
		}, Direction{Repeats: Repeats{Response: 1}}, "Responses from 10.0.0.2"},
		"both places, one lost, one twice": {func(s *script) {
			both := func(psn uint32, arrivals int) {
				s.from = outbound
				s.write(psn)
				s.from = inbound
				for range arrivals {
					s.write(psn)
				}
			}
			both(1, 1)
			both(2, 0)
			both(3, 2)
			s.answer(2, sequence)
			both(2, 1)
			both(3, 1)
			s.ack(3)
		}, Direction{LostAfter: 1, Repeats: Repeats{Sequence: 2, Duplicated: 1}}, "lost or reordered at least 1 of 5"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{}
			c.make(s)
			got := s.connection(t)
			d := got.Sent[0]
			d.Packets, d.Bytes, d.Sends, d.Writes, d.Reads, d.RoundTrip = 0, 0, 0, 0, 0, RoundTrip{}
			assert.Equal(t, c.want, d)
			if c.diagnosis == "" {
				assert.Empty(t, got.Diagnosis)
			}
			assert.Contains(t, got.Diagnosis, c.diagnosis)
			for i, e := range got.Ends {
				assert.Equal(t, ends[i].Addr(), e.Addr)
			}
			assert.Equal(t, uint32(0x22), got.Ends[1].QPN)
		})
	}
}

// Operations, bytes and round trips, without those repeated.
func TestOperations(t *testing.T) {
	s := &script{}
	s.packet(0, wire.Packet{Opcode: wire.RCSendOnly, PSN: wire.PSNMask, AckReq: true}, 13)
	s.now += 9 * time.Microsecond
	s.ack(wire.PSNMask)
	s.packet(0, wire.Packet{Opcode: wire.RCWriteFirst, PSN: 0}, testMTU)
	s.packet(0, wire.Packet{Opcode: wire.RCWriteLast, PSN: 1}, 100)
	s.now += 29 * time.Microsecond
	s.ack(1)
	s.packet(0, wire.Packet{Opcode: wire.RCReadRequest, PSN: 2, RETH: wire.RETH{Length: 2*testMTU + 1}}, 0)
	for i, op := range []wire.Opcode{wire.RCReadResponseFirst, wire.RCReadResponseMiddle, wire.RCReadResponseLast} {
		s.packet(1, wire.Packet{Opcode: op, PSN: 2 + uint32(i)}, []int{testMTU, testMTU, 1}[i])
	}
	s.packet(0, wire.Packet{Opcode: wire.RCFetchAdd, PSN: 5}, 0)
	s.packet(1, wire.Packet{Opcode: wire.RCAtomicAcknowledge, PSN: 5}, 0)
	c := s.connection(t)
	assert.Equal(t, [2]End{{ends[0].Addr(), 0x11}, {ends[1].Addr(), 0x22}}, c.Ends)
	assert.Equal(t, testMTU, c.MTU)
	d := c.Sent[0]
	assert.Equal(t, RoundTrip{Count: 4, Min: time.Microsecond, Mean: 10500 * time.Nanosecond, Max: 30 * time.Microsecond, sum: 42 * time.Microsecond}, d.RoundTrip)
	d.RoundTrip = RoundTrip{}
	assert.Equal(t, Direction{Packets: 5, Bytes: 13 + testMTU + 100, Sends: 1, Writes: 1, Reads: 1, Atomics: 1}, d)
	assert.Equal(t, Direction{Packets: 6, Bytes: 2*testMTU + 1}, c.Sent[1])
	assert.Equal(t, "open", c.Outcome)
}

// Connections of which the capture has no handshake are joined by their numbers, also if both ends
// have sent requests before the first answer.
func TestJoin(t *testing.T) {
	s := &script{}
	for i := range uint32(10) {
		s.packet(0, wire.Packet{Opcode: wire.RCSendOnly, PSN: 1000*i + 1, DestQP: 0x200 + i}, 8)
		s.packet(1, wire.Packet{Opcode: wire.RCSendOnly, PSN: 50_000 + 1000*i, DestQP: 0x100 + i}, 8)
	}
	for i := range uint32(10) {
		s.packet(1, wire.Packet{Opcode: wire.RCAcknowledge, PSN: 1000*i + 1, DestQP: 0x100 + i}, 0)
		s.packet(0, wire.Packet{Opcode: wire.RCAcknowledge, PSN: 50_000 + 1000*i, DestQP: 0x200 + i}, 0)
	}
	r := s.report(t)
	require.Len(t, r.Connections, 10)
	for i, c := range r.Connections {
		assert.Equal(t, [2]End{{ends[0].Addr(), 0x100 + uint32(i)}, {ends[1].Addr(), 0x200 + uint32(i)}}, c.Ends)
		for _, d := range c.Sent {
			assert.Equal(t, [3]int64{2, 8, 1}, [3]int64{d.Packets, d.Bytes, d.RoundTrip.Count})
		}
	}
}

// Services without acknowledgements, or without an order.
func TestServices(t *testing.T) {
	s := &script{}
	for _, psn := range []uint32{1, 2, 4, 5, 7, 6} {
		s.packet(0, wire.Packet{Opcode: wire.UCWriteOnly, PSN: psn}, 100)
	}
	c := s.connection(t)
	assert.Equal(t, "UC", c.Service)
	assert.Equal(t, Direction{Packets: 6, Bytes: 600, Writes: 6, Gaps: 2, LostBefore: 1, Reordered: 1}, c.Sent[0])
	assert.Contains(t, c.Diagnosis, "lost or reordered at least 1 of 7")

	s = &script{}
	header := wire.SRDETH{Source: 1, Target: 2, MTU: 5}
	for _, psn := range []uint32{2, 1, 3} { // SRD reorders on purpose
		s.packet(0, wire.Packet{Opcode: wire.SRDSend, PSN: psn, SRDETH: header, DETH: wire.DETH{SrcQP: 0x44}}, 100)
	}
	s.packet(1, wire.Packet{Opcode: wire.SRDAcknowledge, PSN: 3, SRDETH: header}, 8)
	s.now += time.Millisecond
	s.packet(0, wire.Packet{Opcode: wire.SRDSend, PSN: 3, SRDETH: header, DETH: wire.DETH{SrcQP: 0x44}}, 100)
	s.packet(1, wire.Packet{Opcode: wire.SRDAcknowledge, PSN: 4, SRDETH: header}, 8)
	c = s.connection(t)
	assert.Equal(t, "SRD", c.Service)
	assert.EqualValues(t, 1, c.Sent[0].RoundTrip.Count, "of the second packet; the third was repeated")
	c.Sent[0].RoundTrip = RoundTrip{}
	assert.Equal(t, Direction{Packets: 4, Bytes: 300, Sends: 3, Repeats: Repeats{TimeOut: 1}}, c.Sent[0])

	s = &script{}
	for side := range 2 {
		s.packet(side, wire.Packet{Opcode: wire.UDSendOnly, DestQP: []uint32{7, 8}[side], DETH: wire.DETH{SrcQP: []uint32{8, 7}[side]}}, 50)
	}
	c = s.connection(t)
	assert.Equal(t, "UD", c.Service)
	assert.Equal(t, [2]End{{ends[0].Addr(), 8}, {ends[1].Addr(), 7}}, c.Ends)
	assert.Equal(t, [2]Direction{{Packets: 1, Bytes: 50, Sends: 1}, {Packets: 1, Bytes: 50, Sends: 1}}, c.Sent)
}

// A handshake whose REP was not recorded, and messages of the kernel.
func TestManagement(t *testing.T) {
	recorded := func(name string) []byte {
		text, err := os.ReadFile("../internal/roce/cm/mad/testdata/" + name + ".hex")
		require.NoError(t, err)
		b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
		require.NoError(t, err)
		return b
	}
	s := &script{}
	req := recorded("req-rxe-rping")
	s.message(0, req)
	qpn := binary.BigEndian.Uint32(req[24+32:]) >> 8
	s.only(1)
	s.packet(1, wire.Packet{Opcode: wire.RCAcknowledge, PSN: 1, DestQP: qpn}, 0)
	s.message(0, recorded("rtu-rxe-rping"))
	c := s.connection(t)
	assert.Equal(t, []string{"REQ", "RTU"}, []string{c.Events[0].Message, c.Events[1].Message})
	assert.Equal(t, [2]End{{ends[0].Addr(), qpn}, {ends[1].Addr(), 0x22}}, c.Ends)
	assert.EqualValues(t, 7174, c.Port)
	assert.EqualValues(t, 1, c.Sent[0].RoundTrip.Count)

	s = &script{}
	files, err := filepath.Glob("../internal/roce/cm/mad/testdata/*.hex")
	require.NoError(t, err)
	for i, path := range files {
		s.message(i&1, recorded(strings.TrimSuffix(filepath.Base(path), ".hex")))
	}
	total := int64(0)
	for _, n := range s.report(t).Messages {
		total += n
	}
	assert.EqualValues(t, len(files), total)
}

// Replies to one request, each of another queue pair, take no memory: the last counts.
func TestManyReplies(t *testing.T) {
	const local, remote, replies = 5, 6, 1000
	encoded := func(encode func(*[mad.Len]byte) error) []byte {
		var b [mad.Len]byte
		require.NoError(t, encode(&b))
		return b[:]
	}
	s := &script{}
	s.message(0, encoded((&mad.REQ{LocalCommID: local, QPN: 0x11}).Encode))
	for i := range uint32(replies) {
		s.message(1, encoded((&mad.REP{LocalCommID: remote, RemoteCommID: local, QPN: 0x22 + i}).Encode))
	}
	a := newAnalyser()
	require.NoError(t, a.read(bytes.NewReader(s.file())))
	require.Equal(t, 1, a.used.Len())
	c := a.used.Front().Value.(*connection)
	assert.Equal(t, uint32(0x22+replies-1), c.Ends[1].QPN)
	assert.Len(t, a.byKey, 2)
	a.remove(c)
	assert.Empty(t, a.byKey, "nothing keeps a connection that was left out")
	assert.Empty(t, a.exchanges)
}

// XRC is analysed as RC is.
func TestXRC(t *testing.T) {
	s := &script{}
	for psn := range uint32(2) {
		s.packet(0, wire.Packet{Opcode: wire.RCSendOnly.On(wire.ServiceXRC), PSN: psn, SRQN: 9, AckReq: true}, 8)
		s.packet(1, wire.Packet{Opcode: wire.RCAcknowledge.On(wire.ServiceXRC), PSN: psn, AETH: wire.AETH{Syndrome: wire.Ack(31)}}, 0)
	}
	c := s.connection(t)
	assert.Equal(t, "XRC", c.Service)
	assert.EqualValues(t, 2, c.Sent[0].Sends)
	assert.EqualValues(t, 16, c.Sent[0].Bytes)
	assert.EqualValues(t, 2, c.Sent[0].RoundTrip.Count)
}

// Connections beyond the limit are counted; the one in use stays.
func TestTooManyConnections(t *testing.T) {
	s := &script{}
	for i := range uint32(maxConnections + 100) {
		s.packet(0, wire.Packet{Opcode: wire.UCSendOnly, DestQP: 0x1000 + i}, 8)
		s.packet(0, wire.Packet{Opcode: wire.UCSendOnly, DestQP: 0x1000, PSN: i}, 8)
	}
	r := s.report(t)
	assert.Len(t, r.Connections, maxConnections)
	assert.Equal(t, LeftOut{Connections: 100, Packets: 100, Bytes: 800}, r.LeftOut)
	assert.Equal(t, uint32(0x1000), r.Connections[0].Ends[1].QPN)
	assert.EqualValues(t, maxConnections+101, r.Connections[0].Sent[0].Packets)
}

// A train of packets that was recorded as one.
func TestTrain(t *testing.T) {
	s, train := &script{}, []byte{}
	flow := wire.NewFlow(ends[0], netip.AddrPortFrom(ends[1].Addr(), wire.UDPPort))
	for i := range uint16(20) {
		p := wire.Packet{Opcode: wire.RCSendOnly, MigReq: true, PKey: 0xffff, DestQP: 0x22, PSN: uint32(i)}
		b := make([]byte, p.Opcode.HeaderLen()+500-400*int(i/19)+wire.ICRCLen)
		p.PutHeaders(b)
		end := len(b) - wire.ICRCLen
		wire.PutICRC(b[end:], wire.ICRCFinish(wire.ICRCUpdate(flow.ICRCStart(i, len(b), b[:wire.BTHLen]), b[wire.BTHLen:end])))
		train = append(train, b...)
	}
	s.datagram(ends[0], netip.AddrPortFrom(ends[1].Addr(), wire.UDPPort), train)
	c := s.connection(t)
	assert.Equal(t, Direction{Packets: 20, Bytes: 19*500 + 100, Sends: 20}, c.Sent[0])
}

// A truncated file gives what was read, and an error that says where it ends.
func TestTruncated(t *testing.T) {
	s := &script{}
	for i := range uint32(3) {
		s.only(i)
	}
	b := s.file()
	record := (len(b) - 24) / 3
	for n := range len(b) {
		r, err := Analyse(bytes.NewReader(b[:n]))
		require.NotNil(t, r)
		if n >= 24 && (n-24)%record == 0 {
			require.NoError(t, err)
		} else {
			require.Error(t, err, n)
		}
		require.EqualValues(t, max(n-24, 0)/record, r.Packets)
	}
	_, err := Analyse(bytes.NewReader(b[:len(b)-1]))
	assert.ErrorContains(t, err, "truncated")
	_, err = Analyse(bytes.NewReader([]byte("GIF89a")))
	assert.ErrorContains(t, err, "neither pcap nor pcapng")
}
