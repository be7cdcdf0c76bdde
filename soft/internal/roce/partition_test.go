package roce

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/optional"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// foreign is where a peer is that is no software device.
var foreign = netip.MustParseAddrPort("127.0.0.99:4791")

// packetFrom is a packet on its way to an endpoint, with the right checksum.
func packetFrom(from netip.AddrPort, e *endpoint, p *wire.Packet, payload []byte) *link.Datagram {
	flow := wire.NewFlow(from, e.socket.Addr())
	n := p.Opcode.HeaderLen()
	b := make([]byte, n+len(payload)+wire.ICRCLen)
	p.PutHeaders(b)
	crc := wire.ICRCUpdate(flow.ICRCStart(0, len(b), b[:n]), payload)
	n += copy(b[n:], payload)
	wire.PutICRC(b[n:], wire.ICRCFinish(crc))
	return &link.Datagram{Src: from, Data: b}
}

// arrive has the device handle a packet from a foreign peer.
func arrive(d *Device, p *wire.Packet, payload []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.endpoints[0]
	e.handle(packetFrom(foreign, e, p, payload), d.now())
}

// connectForeign connects a queue pair to a peer that is no software device.
func (s *side) connectForeign() {
	s.connectTo(verbs.GIDEntry{GID: verbs.GIDFromAddr(foreign.Addr()), UDPPort: foreign.Port()}, 0x123)
}

// Every service takes packets of the default partition alone, of full and limited members
// (IBTA 10.9.3): those of others are dropped and counted.
func TestPartitionKeys(t *testing.T) {
	payload := []byte("payload!")
	for _, c := range []struct {
		name    string
		dropped string // the counter
		open    func(t *testing.T) (*Device, wire.Packet, []byte)
	}{
		{"RC", "rx_wrong_peer", func(t *testing.T) (*Device, wire.Packet, []byte) {
			s := openSide(t, Config{DisableLocal: true}, 4096)
			s.connectForeign()
			return s.dev, wire.Packet{Opcode: wire.RCSendOnly, MigReq: true, DestQP: s.qp.Num(), PSN: 0xfffff0}, payload
		}},
		{"UC", "rx_wrong_peer", func(t *testing.T) (*Device, wire.Packet, []byte) {
			s := openSide(t, Config{}, 4096)
			s.use(verbs.UC)
			s.modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1}, verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess)
			s.modify(verbs.QPAttr{State: verbs.QPReadyToReceive, PathMTU: 1024, DestQPN: 0x123, RQPSN: 0xfffff0,
				Address: verbs.AddressAttr{DGID: verbs.GIDFromAddr(foreign.Addr()), Port: 1, UDPPort: foreign.Port()}},
				verbs.QPAttrAddress|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN)
			return s.dev, wire.Packet{Opcode: wire.UCSendOnly, MigReq: true, DestQP: s.qp.Num(), PSN: 0xfffff0}, payload
		}},
		{"UD", "rx_wrong_peer", func(t *testing.T) (*Device, wire.Packet, []byte) {
			s := openUD(t, Config{})
			return s.dev, wire.Packet{Opcode: wire.UDSendOnly, MigReq: true, DestQP: s.qp.Num(), DETH: wire.DETH{QKey: testKey, SrcQP: 7}}, payload
		}},
		{"SRD", "rx_wrong_peer", func(t *testing.T) (*Device, wire.Packet, []byte) {
			p := newSRDNode(t, srdNodeOptions{})
			return p.dev, wire.Packet{Opcode: wire.SRDHello, MigReq: true, DestQP: p.qp.Num(), SRDETH: wire.SRDETH{Source: 1, MTU: 3}, DETH: wire.DETH{QKey: testKey, SrcQP: 7}}, nil
		}},
		{"CM", "rx_malformed", func(t *testing.T) (*Device, wire.Packet, []byte) {
			m := openCMSide(t, Config{})
			return m.dev, wire.Packet{Opcode: wire.UDSendOnly, MigReq: true, DestQP: wire.ManagementQPN, DETH: wire.DETH{QKey: cm.QKey, SrcQP: wire.ManagementQPN}}, make([]byte, mad.Len)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, p, payload := c.open(t)
			for i, key := range []uint16{0, 1, 5, 0x7ffe, 0x8000, 0x8001, 0xfffe} {
				p.PKey = key
				arrive(d, &p, payload)
				require.Zero(t, counter(t, d, "rcvd_pkts"), "with the key %#x", key)
				require.EqualValues(t, i+1, counter(t, d, c.dropped))
			}
			before := counter(t, d, c.dropped)
			for i, key := range []uint16{0xffff, 0x7fff} {
				p.PKey = key
				arrive(d, &p, payload)
				require.EqualValues(t, i+1, counter(t, d, "rcvd_pkts"), "with the key %#x", key)
			}
			assert.Equal(t, before, counter(t, d, c.dropped))
		})
	}
}

// A request with an unknown opcode is refused by its queue pair (IBTA 9.7.4.1.3), as one
// that it does not take; what no request can be is dropped.
func TestUnknownOpcodeIsRefused(t *testing.T) {
	s := openSide(t, Config{DisableLocal: true}, 4096)
	s.connectForeign()
	arriveAs := func(op wire.Opcode) {
		s.dev.mu.Lock()
		defer s.dev.mu.Unlock()
		e := s.dev.endpoints[0]
		p := wire.Packet{Opcode: wire.RCSendOnly, MigReq: true, PKey: 0xffff, DestQP: s.qp.Num(), PSN: 0xfffff0}
		dg := packetFrom(foreign, e, &p, nil)
		dg.Data[0] = byte(op)
		flow, n := wire.NewFlow(foreign, e.socket.Addr()), len(dg.Data)-wire.ICRCLen
		wire.PutICRC(dg.Data[n:], wire.ICRCFinish(flow.ICRCStart(0, len(dg.Data), dg.Data[:n])))
		e.handle(dg, s.dev.now())
	}
	arriveAs(0x35) // of an unreliable connection
	require.Equal(t, uint64(1), counter(t, s.dev, "rx_malformed"))
	require.Equal(t, verbs.QPReadyToSend, must(s.qp.Query()).State)
	arriveAs(0x15)
	require.Equal(t, uint64(1), counter(t, s.dev, "rx_malformed"))
	require.Equal(t, verbs.QPError, must(s.qp.Query()).State)
}

// So do connections through shared memory.
func TestPartitionKeysThroughSharedMemory(t *testing.T) {
	x, y := openPair(t, Config{}, Config{}, 4096)
	awaitSharedMemory(x, y)
	if y.qp.(optional.CountersQP).Counters().Path != verbs.PathSharedMemory {
		t.Skip("there is none on this system")
	}
	from := x.dev.endpoints[0].socket.Addr()
	p := wire.Packet{Opcode: wire.RCWriteOnly, MigReq: true, DestQP: y.qp.Num(), PSN: 0xfffff0,
		RETH: wire.RETH{VA: y.mr.Addr(), RKey: y.mr.RKey(), Length: 8}}
	send := func(key uint16) bool {
		y.dev.mu.Lock()
		defer y.dev.mu.Unlock()
		p.PKey = key
		path := y.dev.endpoints[0].PathOf(from, &p)
		if path != nil {
			y.qp.(*queuePair).transport.ReceivePieces(&p, y.mtu, [][]byte{[]byte("payload!")}, nil, y.dev.now())
		}
		return path != nil
	}
	require.False(t, send(0x8001))
	require.Equal(t, make([]byte, 8), y.mem[:8])
	require.True(t, send(0xffff))
	require.Equal(t, "payload!", string(y.mem[:8]))
}
