package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// toQP begins like a packet for a queue pair.
func toQP(qpn uint32, text string) []byte {
	return append([]byte{100, 0, 0xff, 0xff, 0, byte(qpn >> 16), byte(qpn >> 8), byte(qpn)}, text...)
}

func putAlone(t *testing.T, from *Socket, to *Socket, packet []byte) {
	t.Helper()
	put(from, to.Addr(), packet)
	flush(t, from) // no train: the first packet would decide for all
}

// texts are the texts of the next n packets.
func texts(t *testing.T, s *Socket, n int) (list []string) {
	t.Helper()
	for _, d := range take(t, s, n) {
		list = append(list, string(d.Data[8:]))
	}
	return list
}

func TestIgnore(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		s := listen(t, cfg)
		v4 := cfg.Addr.Addr().Is4()
		var others []netip.Addr
		for i := range MaxIgnored - 1 {
			if v4 {
				others = append(others, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
			} else {
				others = append(others, netip.MustParseAddr(fmt.Sprintf("2001:db8:0:%d::1", i)))
			}
		}
		sender := cfg
		if v4 {
			sender.Addr = netip.MustParseAddrPort("127.0.0.77:0")
		}
		a := listen(t, sender)
		for place := range MaxIgnored {
			err := s.SetFilter(Filter{IgnoredQPN: 1, Ignored: slices.Concat(others[:place], []netip.Addr{a.Addr().Addr()}, others[place:])})
			if cfg.Portable {
				require.ErrorIs(t, err, errors.ErrUnsupported)
				assert.Zero(t, s.Dropped())
				return
			}
			require.NoError(t, err)
			before := s.Dropped()
			for _, packet := range [][]byte{toQP(1, "gone"), toQP(0x10001, "other"), []byte("short"), toQP(2, "fine")} {
				putAlone(t, a, s, packet)
			}
			assert.Equal(t, []string{"other", "fine"}, texts(t, s, 2))
			assert.Equal(t, before+2, s.Dropped())
		}
		require.NoError(t, s.SetFilter(Filter{IgnoredQPN: 1, Ignored: others}))
		putAlone(t, a, s, toQP(1, "of another"))
		assert.Equal(t, []string{"of another"}, texts(t, s, 1))
		require.NoError(t, s.SetFilter(Filter{IgnoredQPN: 1, Ignored: []netip.Addr{a.Addr().Addr()}}))
		require.NoError(t, s.SetFilter(Filter{}))
		require.NoError(t, s.SetFilter(Filter{}), "there is none")
		putAlone(t, a, s, toQP(1, "again"))
		assert.Equal(t, []string{"again"}, texts(t, s, 1))
	})
}

func TestRestrict(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		if cfg.Portable {
			t.Skip("it has no filter")
		}
		s, peer, nonPeer := listen(t, cfg), listen(t, cfg), listen(t, cfg)
		other := netip.AddrPortFrom(peer.Addr().Addr().Next(), 0)
		got := func(f Filter, want ...string) {
			t.Helper()
			f.Restrict = true
			require.NoError(t, s.SetFilter(f))
			before := s.Dropped()
			for _, from := range []*Socket{peer, nonPeer} {
				name := map[*Socket]string{peer: "peer ", nonPeer: "stranger "}[from]
				putAlone(t, from, s, toQP(1, name+"1"))
				putAlone(t, from, s, toQP(0x77, name+"77"))
				putAlone(t, from, s, append([]byte{0xe5}, toQP(0x88, name+"of e0")[1:]...))
			}
			assert.Equal(t, want, texts(t, s, len(want)))
			assert.Equal(t, before+uint64(6-len(want)), s.Dropped())
		}
		all := []netip.AddrPort{other, peer.Source(), other}
		got(Filter{Admitted: all}, "peer 1", "peer 77", "peer of e0")
		got(Filter{Admitted: all[1:2], Open: []uint32{5, 1}}, "peer 1", "peer 77", "peer of e0", "stranger 1")
		got(Filter{Admitted: all, OpenService: 0xe0}, "peer 1", "peer 77", "peer of e0", "stranger of e0")
		got(Filter{Admitted: []netip.AddrPort{netip.AddrPortFrom(peer.Addr().Addr(), 0)}}, "peer 1", "peer 77", "peer of e0", "stranger 1", "stranger 77", "stranger of e0")
		got(Filter{Open: []uint32{0x77}}, "peer 77", "stranger 77")
		got(Filter{Admitted: all, Ignored: []netip.Addr{peer.Addr().Addr()}, IgnoredQPN: 0x77}, "peer 1", "peer of e0")
	})
}

// The system accepts the largest filters, also one after the other.
func TestLargestFilter(t *testing.T) {
	for _, addr := range []netip.AddrPort{loopback4, loopback6} {
		s := listen(t, Config{Addr: addr})
		f := Filter{Restrict: true, OpenService: 0xe0}
		for i := range MaxAdmitted {
			a := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
			if addr.Addr().Is6() {
				a = netip.MustParseAddr(fmt.Sprintf("fd00::8000:%x", i+1))
			}
			if f.Admitted = append(f.Admitted, netip.AddrPortFrom(a, 65000)); i < MaxIgnored {
				f.Ignored = append(f.Ignored, a)
			}
			if i < MaxOpen {
				f.Open = append(f.Open, uint32(i))
			}
		}
		assert.LessOrEqual(t, len(f.program(addr.Addr().Is4())), unix.BPF_MAXINSNS)
		for range 3 {
			require.NoError(t, s.SetFilter(f))
		}
		putAlone(t, s, s, toQP(5, "open"))
		assert.Equal(t, []string{"open"}, texts(t, s, 1))
		f.Open = append(f.Open, 99)
		require.ErrorContains(t, s.SetFilter(f), "the limits are")
		putAlone(t, s, s, toQP(99, "no filter"))
		assert.Equal(t, []string{"no filter"}, texts(t, s, 1))
	}
}

// passes is the rule of a filter.
func (f *Filter) passes(source netip.AddrPort, qpn uint32, service uint8) bool {
	for _, a := range f.Ignored {
		if qpn == f.IgnoredQPN && (a == source.Addr() || a.Is6() && netip.PrefixFrom(a, 64).Masked().Contains(source.Addr())) {
			return false
		}
	}
	return !f.Restrict || slices.Contains(f.Open, qpn) || f.OpenService != 0 && service == f.OpenService ||
		slices.Contains(f.Admitted, source) || slices.Contains(f.Admitted, netip.AddrPortFrom(source.Addr(), 0))
}

// run is what the system does with a program: it returns the verdict on a packet with that IP
// header, followed by the UDP header.
func run(t *rapid.T, program []unix.SockFilter, ip, udp []byte) bool {
	var a uint32
	var memory [unix.BPF_MEMWORDS]uint32
	for at := 0; ; at++ {
		i := program[at]
		b, offset := udp, i.K
		if offset >= netOffset {
			b, offset = ip, offset-netOffset
		}
		switch i.Code {
		case bpfLoad:
			a = binary.BigEndian.Uint32(b[offset:])
		case bpfLoadHalf:
			a = uint32(binary.BigEndian.Uint16(b[offset:]))
		case bpfLoadByte:
			a = uint32(b[offset])
		case bpfLoadMemory:
			a = memory[i.K]
		case bpfStore:
			memory[i.K] = a
		case bpfAnd:
			a &= i.K
		case bpfEqual:
			if a == i.K {
				at += int(i.Jt)
			} else {
				at += int(i.Jf)
			}
		case bpfReturn:
			return i.K != bpfDrop
		default:
			t.Fatalf("instruction %#x", i.Code)
		}
	}
}

// A program matches as its rule says.
func TestFilterProgram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v4 := rapid.Bool().Draw(t, "v4")
		addr := rapid.Custom(func(t *rapid.T) netip.Addr {
			b := bytes.Repeat([]byte{0xfd}, 16)
			for _, i := range []int{1, 6, 10, 15} { // one in each word
				b[i] = rapid.SampledFrom([]byte{0, 0, 0, 0x81}).Draw(t, "byte")
			}
			if v4 {
				return netip.AddrFrom4([4]byte(b[12:]))
			}
			return netip.AddrFrom16([16]byte(b))
		})
		qpn := rapid.SampledFrom([]uint32{1, 2, 0x10001, 0xffffff})
		port := rapid.SampledFrom([]uint16{4791, 61000, 61001})
		admitted := rapid.Custom(func(t *rapid.T) netip.AddrPort {
			return netip.AddrPortFrom(addr.Draw(t, "address"), rapid.OneOf(port, rapid.Just(uint16(0))).Draw(t, "port"))
		})
		f := Filter{
			IgnoredQPN: qpn.Draw(t, "ignored queue pair"), Ignored: rapid.SliceOfN(addr, 0, 2).Draw(t, "ignored"),
			Restrict: rapid.IntRange(0, 3).Draw(t, "restrict") > 0, Open: rapid.SliceOfN(qpn, 0, 2).Draw(t, "open"),
			OpenService: rapid.SampledFrom([]uint8{0, 0x60, 0xe0}).Draw(t, "service"), Admitted: rapid.SliceOfN(admitted, 0, 8).Draw(t, "admitted"),
		}
		program := f.program(v4)
		for range 20 {
			source := netip.AddrPortFrom(addr.Draw(t, "source"), port.Draw(t, "source port"))
			to, op := qpn.Draw(t, "queue pair"), rapid.Byte().Draw(t, "opcode")
			ip := make([]byte, 40)
			if v4 {
				copy(ip[12:], source.Addr().AsSlice())
			} else {
				copy(ip[8:], source.Addr().AsSlice())
			}
			udp := binary.BigEndian.AppendUint16(nil, source.Port())
			udp = append(append(udp, make([]byte, 6)...), op, 0, 0, 0)
			udp = binary.BigEndian.AppendUint32(udp, rapid.SampledFrom([]uint32{0, 0x99000000}).Draw(t, "reserved")|to)
			if want, got := f.passes(source, to, op&serviceBits), run(t, program, ip, udp); want != got {
				t.Fatalf("%+v: from %v to %#x with %#x: passes %v, by the rule %v", f, source, to, op, got, want)
			}
		}
	})
}

func TestDropCountWraps(t *testing.T) {
	var c dropCount
	for _, now := range []uint32{5, 1<<32 - 1, 3} {
		c.note(now)
	}
	assert.EqualValues(t, uint64(1<<32+3), c.total)
}

// Packets that a full buffer drops are counted, too.
func TestDroppedForWantOfRoom(t *testing.T) {
	s, a := listen(t, Config{Addr: loopback4, ReceiveBuffer: 1}), listen(t, Config{Addr: loopback4})
	for range 100 {
		putAlone(t, a, s, make([]byte, 1000))
	}
	assert.Positive(t, s.Dropped())
	require.NoError(t, s.Close())
	assert.Positive(t, s.Dropped(), "it is remembered")
}
