package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// example is a script with several kinds of packets and faults.
func example() *script {
	s := &script{}
	for psn := range uint32(8) {
		if psn != 3 {
			s.write(psn)
		}
	}
	s.answer(3, wire.Nak(wire.NakSequence))
	for psn := uint32(3); psn < 8; psn++ {
		s.write(psn)
	}
	s.ack(7)
	s.packet(0, wire.Packet{Opcode: wire.UDSendOnly, DestQP: 0x33, DETH: wire.DETH{SrcQP: 0x44}}, 100)
	s.packet(0, wire.Packet{Opcode: wire.RCReadRequest, PSN: 8, RETH: wire.RETH{Length: 1}}, 0)
	s.packet(1, wire.Packet{Opcode: wire.RCReadResponseOnly, PSN: 8}, 1)
	s.answer(9, wire.Nak(wire.NakRemoteAccess))
	return s
}

// pcap writes frames with a header in front of each.
func pcap(order binary.AppendByteOrder, magic, linkType uint32, frames []frame, header func(f *frame) []byte) []byte {
	b := order.AppendUint32(nil, magic)
	b = order.AppendUint16(order.AppendUint16(b, 2), 4)
	b = order.AppendUint32(order.AppendUint32(append(b, make([]byte, 8)...), 65535), linkType)
	unit := int64(1)
	if magic == 0xa1b2c3d4 {
		unit = 1000
	}
	for _, f := range frames {
		data := append(header(&f), f.data...)
		b = order.AppendUint32(order.AppendUint32(b, uint32(f.at/1e9)), uint32(f.at%1e9/unit))
		b = order.AppendUint32(order.AppendUint32(b, uint32(len(data))), uint32(len(data)))
		b = append(b, data...)
	}
	return b
}

// block writes a block of a pcapng file.
func block(order binary.AppendByteOrder, b []byte, kind uint32, body []byte) []byte {
	body = append(body, make([]byte, -len(body)&3)...)
	n := uint32(len(body) + 12)
	b = append(order.AppendUint32(order.AppendUint32(b, kind), n), body...)
	return order.AppendUint32(b, n)
}

// pcapng writes frames; the interface has time stamps in 2^-20 s if binary is set.
func pcapng(order binary.AppendByteOrder, linkType uint16, frames []frame, resolution byte, unit func(ns int64) uint64, header func(f *frame) []byte) []byte {
	section := order.AppendUint32(nil, 0x1a2b3c4d)
	section = append(order.AppendUint16(order.AppendUint16(section, 1), 0), bytes.Repeat([]byte{0xff}, 8)...)
	b := block(order, nil, 0x0a0d0d0a, section)
	description := order.AppendUint32(order.AppendUint16(order.AppendUint16(nil, linkType), 0), 0)
	description = append(order.AppendUint16(order.AppendUint16(description, 2), 3), "eth\x00"...) // a name
	description = append(order.AppendUint16(order.AppendUint16(description, 9), 1), resolution, 0, 0, 0)
	b = block(order, b, 1, order.AppendUint32(description, 0))
	b = block(order, b, 5, make([]byte, 12)) // statistics, which are skipped
	for _, f := range frames {
		data := append(header(&f), f.data...)
		at := unit(f.at)
		p := order.AppendUint32(order.AppendUint32(order.AppendUint32(nil, 0), uint32(at>>32)), uint32(at))
		p = append(order.AppendUint32(order.AppendUint32(p, uint32(len(data))), uint32(len(data))), data...)
		p = append(p, make([]byte, -len(p)&3)...)
		p = order.AppendUint32(order.AppendUint16(order.AppendUint16(p, 2), 4), uint32(f.from))
		b = block(order, b, 6, order.AppendUint32(p, 0))
	}
	return b
}

// TestFormats: the same packets in all kinds of files give the same report.
func TestFormats(t *testing.T) {
	s := example()
	s.now = 1_700_000_000 * time.Second
	want := s.report(t)
	raw := func(*frame) []byte { return nil }
	ethernet := func(tags ...byte) func(*frame) []byte {
		return func(*frame) []byte { return append(append(make([]byte, 12), tags...), 8, 0) }
	}
	le, be := binary.LittleEndian, binary.BigEndian
	nanoseconds := func(ns int64) uint64 { return uint64(ns) }
	const micro, nano = 0xa1b2c3d4, 0xa1b23c4d
	for name, b := range map[string][]byte{
		"raw":             pcap(le, nano, 101, s.frames, raw),
		"raw, big-endian": pcap(be, micro, 101, s.frames, raw),
		"raw of BSD":      pcap(le, micro, 12, s.frames, raw),
		"IPv4":            pcap(le, micro, 228, s.frames, raw),
		"null":            pcap(le, nano, 0, s.frames, func(*frame) []byte { return []byte{2, 0, 0, 0} }),
		"loop":            pcap(le, nano, 108, s.frames, func(*frame) []byte { return []byte{0, 0, 0, 2} }),
		"Ethernet":        pcap(le, nano, 1, s.frames, ethernet()),
		"VLAN":            pcap(le, nano, 1, s.frames, ethernet(0x81, 0, 0, 5)),
		"two VLANs":       pcap(le, nano, 1, s.frames, ethernet(0x88, 0xa8, 0, 5, 0x81, 0, 0, 6)),
		"cooked, second": pcap(le, nano, 276, s.frames, func(*frame) []byte {
			return append([]byte{8, 0}, append(make([]byte, 8), 3, 0, 0, 0, 0, 0, 0, 0, 0, 0)...)
		}),
		"pcapng":             pcapng(le, 101, s.frames, 9, nanoseconds, raw),
		"pcapng, big":        pcapng(be, 1, s.frames, 9, nanoseconds, ethernet()),
		"pcapng, power of 2": pcapng(le, 101, s.frames, 0x80|20, func(ns int64) uint64 { return uint64(ns)/1e9<<20 | (uint64(ns)%1e9<<20+1e9-1)/1e9 }, raw),
		"two sections":       append(pcapng(le, 101, s.frames[:5], 9, nanoseconds, raw), pcapng(be, 1, s.frames[5:], 9, nanoseconds, ethernet())...),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Analyse(bytes.NewReader(b))
			require.NoError(t, err)
			require.Len(t, got.Connections, len(want.Connections))
			for i := range want.Connections {
				a, b := *want.Connections[i], *got.Connections[i]
				assert.WithinDuration(t, a.First, b.First, 2*time.Microsecond)
				for j := range a.Sent { // the resolution differs
					a.Sent[j].RoundTrip, b.Sent[j].RoundTrip = RoundTrip{}, RoundTrip{}
				}
				a.First, a.Last, b.First, b.Last = time.Time{}, time.Time{}, time.Time{}, time.Time{}
				assert.Equal(t, a, b)
			}
			assert.Equal(t, want.Opcodes, got.Opcodes)
		})
	}
}

// TestDirections: the flags of pcapng, too, say which packets are there twice.
func TestDirections(t *testing.T) {
	s := example()
	var both []frame
	for _, f := range s.frames {
		f.from = outbound
		both = append(both, f)
		f.from = inbound
		both = append(both, f)
	}
	r, err := Analyse(bytes.NewReader(pcapng(binary.LittleEndian, 101, both, 9, func(ns int64) uint64 { return uint64(ns) }, func(*frame) []byte { return nil })))
	require.NoError(t, err)
	for i, c := range s.report(t).Connections {
		for j := range c.Sent {
			assert.Equal(t, c.Sent[j].Packets, r.Connections[i].Sent[j].Packets)
			assert.Zero(t, r.Connections[i].Sent[j].Repeats.Duplicated)
			assert.Zero(t, r.Connections[i].Sent[j].LostAfter)
		}
	}
}

// TestDamaged: what is wrong with a file is an error, after the report of what was read.
func TestDamaged(t *testing.T) {
	raw := func(*frame) []byte { return nil }
	nanoseconds := func(ns int64) uint64 { return uint64(ns) }
	good := pcapng(binary.LittleEndian, 101, example().frames, 9, nanoseconds, raw)
	tail := func(kind uint32, body ...byte) []byte {
		return block(binary.LittleEndian, bytes.Clone(good), kind, body)
	}
	for want, b := range map[string][]byte{
		"no byte order":                tail(0x0a0d0d0a, make([]byte, 16)...),
		"too short, or one too many":   tail(1, 1, 0, 0, 0),
		"the block of a packet is too": tail(6, make([]byte, 16)...),
		"interface that was not":       tail(6, append([]byte{1}, make([]byte, 19)...)...),
		"longer than its block":        tail(6, append(make([]byte, 12), 5, 0, 0, 0, 5, 0, 0, 0)...),
		"the two lengths":              append(bytes.Clone(good), 6, 0, 0, 0, 12, 0, 0, 0, 16, 0, 0, 0),
		"length of a block is wrong":   append(bytes.Clone(good), 6, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0),
		"a block is too long":          append(bytes.Clone(good), 6, 0, 0, 0, 0, 0, 0, 0x10),
		"truncated":                    append(bytes.Clone(good), 7, 0, 0, 0, 0, 0, 0, 0xf0),
		"more than":                    append(pcap(binary.LittleEndian, 0xa1b2c3d4, 101, example().frames, raw), bytes.Repeat([]byte{0x7f}, 16)...),
	} {
		r, err := Analyse(bytes.NewReader(b))
		require.ErrorContains(t, err, want)
		require.EqualValues(t, len(example().frames), r.Packets, want)
	}
}

// TestUnreadable: an error of the source is returned as it is.
func TestUnreadable(t *testing.T) {
	broken := errors.New("broken")
	for _, start := range []string{"", "\xd4", "\xd4\xc3\xb2\xa1"} {
		r, err := Analyse(io.MultiReader(strings.NewReader(start), iotest.ErrReader(broken)))
		require.ErrorIs(t, err, broken)
		require.NotErrorIs(t, err, errFormat)
		require.NotNil(t, r)
	}
}

// TestOtherBlocks: packets in blocks that are not read are counted.
func TestOtherBlocks(t *testing.T) {
	le, frames := binary.LittleEndian, example().frames
	b := pcapng(le, 101, frames, 9, func(ns int64) uint64 { return uint64(ns) }, func(*frame) []byte { return nil })
	for kind, n := range map[uint32]int{2: 3, 3: 4, 4: 5} { // 4 has names of hosts
		for range n {
			b = block(le, b, kind, make([]byte, 40))
		}
	}
	r, err := Analyse(bytes.NewReader(b))
	require.NoError(t, err)
	assert.EqualValues(t, len(frames), r.Packets)
	assert.Equal(t, Ignored{Blocks: 7}, r.Ignored)
}

// TestCut: headers alone are enough, but for the ICRC.
func TestCut(t *testing.T) {
	s := example()
	want := s.report(t)
	b := pcap(binary.LittleEndian, 0xa1b23c4d, 101, s.frames, func(f *frame) []byte { return nil })
	var cut []byte
	for cut, b = b[:24:24], b[24:]; len(b) > 0; {
		n := binary.LittleEndian.Uint32(b[8:])
		kept := min(n, 64)
		cut = append(cut, b[:8]...)
		cut = append(binary.LittleEndian.AppendUint32(cut, kept), b[12:16+kept]...)
		b = b[16+n:]
	}
	got, err := Analyse(bytes.NewReader(cut))
	require.NoError(t, err)
	assert.Equal(t, want.Connections, got.Connections)
	assert.Positive(t, got.Ignored.Unchecked)
}

// TestKernelCaptures reads packets of the kernel's rxe.
func TestKernelCaptures(t *testing.T) {
	for name, packets := range map[string]int64{"rxe": 76, "rxe-more": 36} {
		b, err := os.ReadFile("../internal/roce/wire/testdata/" + name + ".pcap")
		require.NoError(t, err)
		r, err := Analyse(bytes.NewReader(b))
		require.NoError(t, err)
		assert.Equal(t, packets, r.Packets)
		assert.Zero(t, r.Ignored)
		for _, c := range r.Connections {
			assert.Zero(t, c.Sent[0].ICRCErrors+c.Sent[1].ICRCErrors+c.Sent[0].LostBefore+c.Sent[1].LostAfter)
		}
	}
}

// TestTshark: tshark counts the same packets of each opcode, and the same repeats.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("tshark is missing (%v): install the Debian package tshark", err)
		}
		t.Skipf("tshark is missing (%v): install the Debian package tshark", err)
	}
	files := map[string][]byte{"example": example().file()}
	for _, path := range []string{"../internal/roce/wire/testdata/rxe.pcap", "../internal/roce/wire/testdata/rxe-more.pcap", "testdata/broken.pcap"} {
		files[filepath.Base(path)], err = os.ReadFile(path)
		require.NoError(t, err)
	}
	for name, b := range files {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, b, 0o600))
		out, err := exec.Command(tshark, "-n", "-r", path, "-T", "fields", "-e", "ip.src", "-e", "ipv6.src",
			"-e", "infiniband.bth.opcode", "-e", "infiniband.bth.destqp", "-e", "infiniband.bth.psn",
			"-e", "infiniband.mad.mgmtclass", "-e", "infiniband.mad.attributeid").Output()
		require.NoError(t, err)
		opcodes, messages, seen, repeats := map[string]int64{}, map[string]int64{}, map[string]bool{}, int64(0)
		for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
			fields := strings.Split(line, "\t")
			n, err := strconv.ParseUint(fields[2], 10, 8)
			require.NoError(t, err, line)
			o := wire.Opcode(n)
			opcodes[o.String()]++
			if len(fields) > 6 && fields[5] == "0x07" { // connection management
				attribute, err := strconv.ParseUint(fields[6], 0, 16)
				require.NoError(t, err, line)
				messages[messageName(int(attribute))]++
			} else if !answers(o) {
				if key := fmt.Sprint(fields[:2], o.Service(), fields[3:5]); seen[key] {
					repeats++
				} else {
					seen[key] = true
				}
			}
		}
		r, err := Analyse(bytes.NewReader(b))
		require.NoError(t, err)
		assert.Equal(t, opcodes, r.Opcodes, name)
		assert.Equal(t, messages, r.Messages, name)
		var ours int64
		for _, c := range r.Connections {
			for _, d := range c.Sent {
				ours += d.Repeats.Total() + d.Repeats.Duplicated - d.LostBefore
			}
		}
		assert.Equal(t, repeats, ours, name)
	}
}

// FuzzAnalyse: no file makes it fail otherwise than by an error, and the report adds up.
func FuzzAnalyse(f *testing.F) {
	s := example()
	s.frames = append(s.frames[4:8], s.frames[len(s.frames)-3:]...)
	f.Add(s.file())
	raw := func(*frame) []byte { return nil }
	f.Add(pcapng(binary.LittleEndian, 101, s.frames, 9, func(ns int64) uint64 { return uint64(ns) }, raw))
	f.Add(pcapng(binary.BigEndian, 101, s.frames[:3], 0x80|20, func(ns int64) uint64 { return uint64(ns) }, raw))
	for _, name := range []string{"rxe", "rxe-more"} {
		b, err := os.ReadFile("../internal/roce/wire/testdata/" + name + ".pcap")
		require.NoError(f, err)
		f.Add(b[:min(len(b), 1000)])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, _ := Analyse(bytes.NewReader(b))
		var sent int64
		for _, c := range r.Connections {
			for _, d := range c.Sent {
				sent += d.Packets + d.ICRCErrors
			}
		}
		require.LessOrEqual(t, sent, r.Packets)
	})
}

// FuzzPackets is FuzzAnalyse of the packets in a file that is right.
func FuzzPackets(f *testing.F) {
	for i, x := range example().frames {
		f.Add(x.data[28:min(len(x.data), 100)], uint8(i))
	}
	f.Fuzz(func(t *testing.T, b []byte, from uint8) {
		s := &script{from: direction(from % 3)}
		for len(b) > 0 && len(s.frames) < 100 { // headers, the length of the payload, and the time since the one before
			n := min(int(b[0])+1, len(b))
			s.now += time.Duration(b[0]) * time.Microsecond
			var p wire.Packet
			if h := wire.Opcode(b[0]).HeaderLen(); h > 0 && n >= h && p.ParseHeaders(b[:h]) == nil {
				p.DestQP &= 3
				p.PSN &= 15
				s.packet(n&1, p, (n-h)%64)
			}
			b = b[n:]
		}
		r := s.report(t)
		require.LessOrEqual(t, len(r.Connections), len(s.frames))
	})
}
