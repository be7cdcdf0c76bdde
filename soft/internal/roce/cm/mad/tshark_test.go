package mad

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// datagram puts a MAD into the IPv4 packet that carries it on RoCEv2.
func datagram(source, destination netip.AddrPort, b *[Len]byte) []byte {
	p := wire.Packet{Opcode: wire.UDSendOnly, PKey: 0xffff, DestQP: 1, PSN: 7, DETH: wire.DETH{QKey: 0x80010000, SrcQP: 1}}
	total := p.Opcode.HeaderLen() + Len + wire.ICRCLen
	udp := make([]byte, total)
	n := p.PutHeaders(udp)
	copy(udp[n:], b[:])
	flow := wire.NewFlow(source, destination)
	crc := wire.ICRCUpdate(flow.ICRCStart(0, total, udp[:n]), udp[n:total-wire.ICRCLen])
	wire.PutICRC(udp[total-wire.ICRCLen:], wire.ICRCFinish(crc))

	ip := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0}
	binary.BigEndian.PutUint16(ip[2:], uint16(20+8+total))
	from, to := source.Addr().As4(), destination.Addr().As4()
	ip = append(append(ip, from[:]...), to[:]...)
	ip = binary.BigEndian.AppendUint16(ip, source.Port())
	ip = binary.BigEndian.AppendUint16(ip, destination.Port())
	ip = binary.BigEndian.AppendUint16(ip, uint16(8+total))
	return append(append(ip, 0, 0), udp...)
}

// dissect has tshark read packets, and returns the fields that it finds in each.
func dissect(t *testing.T, packets [][]byte, fields []string) []map[string]string {
	t.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("tshark is missing (%v): install the Debian package tshark", err)
		}
		t.Skipf("tshark is missing (%v): install the Debian package tshark", err)
	}
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b2c3d4)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = le.AppendUint32(le.AppendUint32(b, 65535), 101) // LINKTYPE_RAW
	for i, p := range packets {
		b = le.AppendUint32(le.AppendUint32(b, uint32(i)), 0)
		b = le.AppendUint32(le.AppendUint32(b, uint32(len(p))), uint32(len(p)))
		b = append(b, p...)
	}
	path := filepath.Join(t.TempDir(), "packets.pcap")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	args := []string{"-n", "-r", path, "-T", "fields", "-E", "occurrence=f", "-E", "separator=|"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	out, err := exec.Command(tshark, args...).Output()
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	require.Len(t, lines, len(packets))
	rows := make([]map[string]string, len(lines))
	for i, line := range lines {
		values := strings.Split(line, "|")
		require.Len(t, values, len(fields), "%q", line)
		rows[i] = map[string]string{}
		for j, f := range fields {
			if values[j] != "" {
				rows[i][f] = values[j]
			}
		}
	}
	return rows
}

// TestTsharkReadsOurMADs compares what an independent dissector reads with what was
// encoded. It knows nothing of MRA, SIDR, LAP and APR but their headers. Two fields of
// the REQ are left out, the flow label and the packet rate: version 4.0 shows 12 bits of
// the former's 20, and has the latter overlap with them.
func TestTsharkReadsOurMADs(t *testing.T) {
	source, destination := netip.MustParseAddrPort("10.0.0.1:4791"), netip.MustParseAddrPort("10.0.0.2:4791")
	var private [IPHeaderLen]byte
	(&IPHeader{Source: source.Addr(), Destination: destination.Addr(), SourcePort: 40000}).Encode(&private)
	user := func(n int) string { return hex.EncodeToString(padded("private", n)) }
	cases := []struct {
		m    message
		want map[string]string
	}{
		{&REQ{
			TransactionID: testTID, LocalCommID: 0xa1a2a3a4, ServiceID: 0x01061234, CAGUID: 0xc1c2c3c4c5c6c7c8, QPN: 0xd1d2d3,
			ResponderResources: 0x21, InitiatorDepth: 0x22, RemoteResponseTimeout: 20, Transport: TransportUC, FlowControl: true,
			StartingPSN: 0xe1e2e3, LocalResponseTimeout: 19, RetryCount: 5, PKey: 0xffff, PathMTU: 3, RNRRetry: 6, MaxCMRetries: 15, SRQ: true,
			Primary: Path{
				LocalLID: PermissiveLID, RemoteLID: PermissiveLID, LocalGID: verbs.GIDFromAddr(source.Addr()), RemoteGID: verbs.GIDFromAddr(destination.Addr()),
				FlowLabel: 0xabcde, PacketRate: 0x2a, TrafficClass: 0x31, HopLimit: 0x32, SL: 9, AckTimeout: 17,
			},
			PrivateData: append(private[:], "private"...),
		}, map[string]string{
			"req": "0xa1a2a3a4", "req.serviceid": "0x0000000001061234", "req.serviceid.dport": "0x1234", "req.localcaguid": "0xc1c2c3c4c5c6c7c8",
			"req.localqkey": "0x00000000", "req.localqpn": "0xd1d2d3", "req.responderres": "0x21", "req.initdepth": "0x22", "req.remoteresptout": "0x14",
			"req.transpsvctype": "0x01", "req.e2eflowctrl": "0x01", "req.startpsn": "0xe1e2e3", "req.localresptout": "0x13", "req.retrcount": "0x05",
			"req.pkey": "0xffff", "req.pppmtu": "0x03", "req.rdcexist": "0x00", "req.rnrretrcount": "0x06", "req.maxcmretr": "0x0f", "req.srq": "0x01",
			"req.ext_transport": "0x00", "req.prim_locallid": "65535", "req.prim_remotelid": "65535", "req.prim_localgid_ipv4": "10.0.0.1",
			"req.prim_remotegid_ipv4": "10.0.0.2", "req.prim_tfcclass": "0x31",
			"req.prim_hoplim": "0x32", "req.prim_sl": "0x09", "req.prim_subnetlocal": "0x00", "req.prim_localacktout": "0x11",
			"req.alt_locallid": "0", "req.ip_cm.ipv": "0x04", "req.ip_cm.sport": "0x9c40", "req.ip_cm.sip4": "10.0.0.1", "req.ip_cm.dip4": "10.0.0.2",
			"req.ip_cm.private": user(56),
		}},
		{&REP{
			TransactionID: testTID, LocalCommID: 0xa1a2a3a4, RemoteCommID: 0xb1b2b3b4, QPN: 0xd1d2d3, StartingPSN: 0xe1e2e3, ResponderResources: 0x21,
			InitiatorDepth: 0x22, TargetAckDelay: 15, Failover: FailoverNotSupported, FlowControl: true, RNRRetry: 6, SRQ: true,
			CAGUID: 0xc1c2c3c4c5c6c7c8, PrivateData: []byte("private"),
		}, map[string]string{
			"rep": "0xa1a2a3a4", "rep.remotecommid": "0xb1b2b3b4", "rep.localqkey": "0x00000000", "rep.localqpn": "0xd1d2d3", "rep.startpsn": "0xe1e2e3",
			"rep.respres": "0x21", "rep.initdepth": "0x22", "rep.tgtackdelay": "0x0f", "rep.failoveracc": "0x01", "rep.e2eflowctrl": "0x01",
			"rep.rnrretrcount": "0x06", "rep.srq": "0x01", "rep.localcaguid": "0xc1c2c3c4c5c6c7c8", "rep.private": user(196),
		}},
		{&RTU{TransactionID: testTID, LocalCommID: 0xa1a2a3a4, RemoteCommID: 0xb1b2b3b4, PrivateData: []byte("private")},
			map[string]string{"rtu.localcommid": "0xa1a2a3a4", "rtu.remotecommid": "0xb1b2b3b4", "rtu.private": user(224)}},
		{&REJ{
			TransactionID: testTID, LocalCommID: 0xa1a2a3a4, RemoteCommID: 0xb1b2b3b4, Message: MessageREP, Reason: verbs.CMRejectInvalidMTU, Info: []byte{3},
			PrivateData: []byte("private"),
		}, map[string]string{
			"rej.localcommid": "0xa1a2a3a4", "rej.remotecommid": "0xb1b2b3b4", "rej.msgrej": "0x01", "rej.rejinfolen": "0x01", "rej.reason": "0x001a",
			"rej.ari": "03" + strings.Repeat("00", 71), "rej.private": user(148),
		}},
		{&DREQ{TransactionID: testTID, LocalCommID: 0xa1a2a3a4, RemoteCommID: 0xb1b2b3b4, RemoteQPN: 0xd1d2d3, PrivateData: []byte("private")},
			map[string]string{"dreq.localcommid": "0xa1a2a3a4", "dreq.remotecommid": "0xb1b2b3b4", "req.remoteqpneecn": "0xd1d2d3", "dreq.private": user(220)}},
		{&DREP{TransactionID: testTID, LocalCommID: 0xa1a2a3a4, RemoteCommID: 0xb1b2b3b4, PrivateData: []byte("private")},
			map[string]string{"drsp.localcommid": "0xa1a2a3a4", "drsp.remotecommid": "0xb1b2b3b4", "drsp.private": user(224)}},
		{&MRA{TransactionID: testTID}, nil}, {&SIDRREQ{TransactionID: testTID}, nil}, {&SIDRREP{TransactionID: testTID}, nil},
		{&LAP{
			TransactionID: testTID, LocalCommID: 0xa1a2a3a4, RemoteCommID: 0xb1b2b3b4, RemoteQPN: 0xd1d2d3, RemoteResponseTimeout: 20,
			Alternate:   Path{LocalLID: PermissiveLID, RemoteLID: PermissiveLID, LocalGID: gidA, RemoteGID: gidB, FlowLabel: 0xabcde, HopLimit: 64, AckTimeout: 17},
			PrivateData: []byte("private"),
		}, nil},
		{&APR{
			TransactionID: testTID, LocalCommID: 0xa1a2a3a4, RemoteCommID: 0xb1b2b3b4, Status: APNotSupported, Info: []byte("additional"),
			PrivateData: []byte("private"),
		}, nil},
	}
	seen := map[string]bool{}
	var packets [][]byte
	for _, c := range cases {
		var b [Len]byte
		require.NoError(t, c.m.Encode(&b))
		packets = append(packets, datagram(source, destination, &b))
		for f := range c.want {
			seen["infiniband.cm."+f] = true
		}
	}
	fields := []string{"_ws.malformed", "_ws.expert", "infiniband.mad.baseversion", "infiniband.mad.mgmtclass", "infiniband.mad.classversion",
		"infiniband.mad.method", "infiniband.mad.transactionid", "infiniband.mad.attributeid", "infiniband.deth.q_key"}
	header := len(fields)
	for f := range seen {
		fields = append(fields, f)
	}
	for i, got := range dissect(t, packets, fields) {
		name := fmt.Sprintf("%T", cases[i].m)
		h, err := DecodeHeader(packets[i][20+8+20:][:Len])
		require.NoError(t, err)
		assert.Equal(t, map[string]string{
			"infiniband.mad.baseversion": "0x01", "infiniband.mad.mgmtclass": "0x07", "infiniband.mad.classversion": "0x02", "infiniband.mad.method": "0x03",
			"infiniband.mad.transactionid": "0x0102030405060708", "infiniband.mad.attributeid": fmt.Sprintf("0x%04x", uint16(h.Attribute)),
			"infiniband.deth.q_key": "0x0000000080010000",
		}, only(got, fields[:header]), name)
		want := map[string]string{}
		for f, value := range cases[i].want {
			want["infiniband.cm."+f] = value
		}
		assert.Equal(t, want, only(got, fields[header:]), name)
	}
}

// only keeps some of the keys.
func only(m map[string]string, keys []string) map[string]string {
	kept := map[string]string{}
	for _, k := range keys {
		if v, ok := m[k]; ok {
			kept[k] = v
		}
	}
	return kept
}
