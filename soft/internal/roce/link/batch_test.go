package link

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// fakeBackend takes what a batch would send, apart again into packets, and checks the
// kernel's rules for trains.
type fakeBackend struct {
	t        require.TestingT
	packets  [][]byte
	to       []netip.AddrPort
	headers  []Header
	segments []int
	sends    int
}

func (w *fakeBackend) send(b *batch) {
	w.sends++
	require.LessOrEqual(w.t, b.messageCount, maxMessages)
	for _, m := range b.messages[:b.messageCount] {
		data := bytes.Clone(b.data(&m))
		require.LessOrEqual(w.t, len(data), MaxPacket)
		got := split(nil, Datagram{Src: m.dst, Header: m.header}, data, m.size)
		require.Len(w.t, got, m.packets)
		require.LessOrEqual(w.t, m.packets, b.maxSegments)
		for _, d := range got {
			w.packets = append(w.packets, d.Data)
			w.to = append(w.to, m.dst)
			w.headers = append(w.headers, m.header)
			w.segments = append(w.segments, d.Segment)
		}
	}
}

func (w *fakeBackend) unreachable() []Refusal          { return nil }
func (w *fakeBackend) setFilter(*Filter) error         { return nil }
func (w *fakeBackend) dropped() uint64                 { return 0 }
func (w *fakeBackend) receiveHeaders(bool) error       { return nil }
func (w *fakeBackend) join(netip.AddrPort) error       { return nil }
func (w *fakeBackend) checkRoute(netip.AddrPort) error { return nil }
func (w *fakeBackend) leave(netip.AddrPort) error      { return nil }

func (w *fakeBackend) receive() ([]Datagram, error)        { return nil, nil }
func (w *fakeBackend) features() Features                  { return Features{} }
func (w *fakeBackend) sendPort() uint16                    { return 0 }
func (w *fakeBackend) ended() bool                         { return true }
func (w *fakeBackend) endsWait(bool)                       {}
func (w *fakeBackend) waitSet() WaitSet                    { return nil }
func (w *fakeBackend) share(WaitSet, int) (backend, error) { return nil, errors.ErrUnsupported }
func (w *fakeBackend) steer([]int) error                   { return nil }
func (w *fakeBackend) close() error                        { return nil }

func newFakeBackend(t require.TestingT, segments int) (*Socket, *fakeBackend) {
	w := &fakeBackend{t: t}
	s := &Socket{io: w}
	s.batch.init(true, segments)
	return s, w
}

var peers = []netip.AddrPort{
	netip.MustParseAddrPort("127.0.0.1:4791"),
	netip.MustParseAddrPort("127.0.0.2:4791"),
	netip.MustParseAddrPort("127.0.0.1:4792"),
}

func TestTrains(t *testing.T) {
	type step struct{ n, size, peer int }
	count := func(ns ...int) (all []int) {
		for _, n := range ns {
			for i := range n {
				all = append(all, i)
			}
		}
		return all
	}
	for name, c := range map[string]struct {
		steps []step
		want  []int
	}{
		"64 at most":             {[]step{{130, 40, 0}}, count(64, 64, 2)},
		"last shorter":           {[]step{{3, 100, 0}, {2, 60, 0}}, count(4, 1)},
		"shorter, then as first": {[]step{{1, 100, 0}, {1, 60, 0}, {1, 100, 0}}, count(2, 1)},
		"growth":                 {[]step{{2, 100, 0}, {2, 200, 0}}, count(2, 2)},
		"destination":            {[]step{{2, 100, 0}, {2, 100, 1}, {1, 100, 2}, {2, 100, 0}}, count(2, 2, 1, 2)},
		"65,000 bytes":           {[]step{{17, 4112, 0}}, count(15, 2)},
		"short one still fits":   {[]step{{15, 4112, 0}, {1, 1000, 0}}, count(16)},
		"large ones":             {[]step{{3, MaxPacket, 0}}, count(1, 1, 1)},
		"trains are whole":       {[]step{{80, 4112, 0}}, count(15, 15, 15, 15, 15, 5)},
		"after small ones":       {[]step{{3000, 50, 0}, {30, 4112, 1}}, append(count(slices.Repeat([]int{64}, 46)...), append(count(56), count(15, 15)...)...)},
	} {
		t.Run(name, func(t *testing.T) {
			s, w := newFakeBackend(t, maxSegments)
			var got []int
			for _, st := range c.steps {
				for range st.n {
					got = append(got, put(s, peers[st.peer], make([]byte, st.size)))
				}
			}
			assert.Equal(t, c.want, got)
			flush(t, s)
			assert.Equal(t, got, w.segments)
		})
	}
}

// A discarded packet leaves no trace: the next one joins the train before it.
func TestDiscard(t *testing.T) {
	s, _ := newFakeBackend(t, maxSegments)
	fill := func(size int, with byte) {
		p, _ := s.Packet(peers[0], Header{}, size)
		for i := range p {
			p[i] = with
		}
	}
	fill(20, 1)
	fill(100, 9) // begins a train
	s.Discard(100)
	fill(20, 2)
	fill(10, 9) // ends the train
	s.Discard(10)
	fill(20, 3)
	require.Equal(t, 1, s.batch.messageCount)
	require.Equal(t, 3, s.Pending())
	data := s.batch.data(&s.batch.messages[0])
	require.Equal(t, slices.Concat(bytes.Repeat([]byte{1}, 20), bytes.Repeat([]byte{2}, 20), bytes.Repeat([]byte{3}, 20)), data)
	flush(t, s)
}

// However packets are batched, the same packets leave in the same order with the segment
// numbers that Packet returned.
func TestBatchProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, w := newFakeBackend(t, rapid.SampledFrom([]int{1, 2, 64}).Draw(t, "segments"))
		var sent [][]byte
		var to []netip.AddrPort
		var headers []Header
		var header Header
		var segments []int
		wrong := 0
		size := 40
		for range rapid.IntRange(1, 200).Draw(t, "packets") {
			if rapid.IntRange(0, 3).Draw(t, "another size") == 0 {
				size = rapid.OneOf(rapid.IntRange(1, 100), rapid.IntRange(1, 5000), rapid.IntRange(60000, MaxPacket)).Draw(t, "size")
			}
			dst := peers[0]
			if rapid.IntRange(0, 9).Draw(t, "another peer") == 0 {
				dst = rapid.SampledFrom(peers).Draw(t, "peer")
			}
			if rapid.IntRange(0, 9).Draw(t, "another header") == 0 {
				header = Header{TrafficClass: rapid.SampledFrom([]uint8{0, 0xb8}).Draw(t, "traffic class")}
			}
			p := bytes.Repeat([]byte{byte(len(sent))}, size)
			copy(p, fmt.Sprint(len(sent)))
			if rapid.IntRange(0, 20).Draw(t, "wrong") == 0 {
				b, _ := s.Packet(dst, header, 0)
				require.Nil(t, b)
				wrong++
			}
			b, segment := s.Packet(dst, header, size)
			require.Len(t, b, size)
			require.Equal(t, size, cap(b))
			copy(b, p)
			sent, to, headers, segments = append(sent, p), append(to, dst), append(headers, header), append(segments, segment)
			if rapid.IntRange(0, 50).Draw(t, "flush") == 0 {
				dropped, _ := s.Flush()
				wrong -= dropped
				require.Zero(t, s.Pending())
			}
		}
		dropped, _ := s.Flush()
		require.Equal(t, wrong, dropped)
		require.Equal(t, sent, w.packets)
		require.Equal(t, to, w.to)
		require.Equal(t, headers, w.headers)
		require.Equal(t, segments, w.segments)
	})
}

func FuzzSplit(f *testing.F) {
	f.Add([]byte("packets of eight"), 8)
	f.Add([]byte("the last is shorter"), 8)
	f.Add([]byte("alone"), 5)
	f.Add([]byte("alone"), 0)
	f.Add([]byte{}, -1)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		got := split(nil, Datagram{Src: peers[0]}, data, size)
		require.NotEmpty(t, got)
		var all []byte
		for i, d := range got {
			require.Equal(t, i, d.Segment)
			require.Equal(t, len(d.Data), cap(d.Data))
			if i < len(got)-1 {
				require.Len(t, d.Data, size)
			}
			all = append(all, d.Data...)
		}
		require.True(t, bytes.Equal(data, all))
	})
}
