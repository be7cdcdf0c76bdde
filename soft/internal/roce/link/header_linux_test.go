package link

import (
	"net/netip"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var headers = []Header{
	{}, {TrafficClass: 0xb8}, {HopLimit: 3}, {FlowLabel: 0xabcde},
	{TrafficClass: 0x2a, HopLimit: 255, FlowLabel: 1}, {TrafficClass: 3}, {},
}

// arriving is what a packet sent with h has when it comes in over the loopback interface.
func (h Header) arriving(v4 bool) Header {
	if h.HopLimit == 0 {
		h.HopLimit = defaultHopLimit
	}
	if v4 {
		h.FlowLabel = 0
	}
	return h
}

// Packets arrive with the header that they were sent with, also in trains, and packets of
// different headers share no train.
func TestHeaders(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		tx := listen(t, cfg)
		rx := listen(t, cfg)
		if cfg.Portable {
			rx = listen(t, Config{Addr: cfg.Addr})
		}
		require.NoError(t, rx.ReceiveHeaders(true))
		v4 := cfg.Addr.Addr().Is4()
		var want []Header
		for _, h := range headers {
			for i := range 3 {
				_, segment := tx.Packet(rx.Addr(), h, 100)
				if tx.Features().Segmentation {
					assert.Equal(t, i, segment)
				}
				if cfg.Portable {
					h = Header{}
				}
				want = append(want, h.arriving(v4))
			}
		}
		flush(t, tx)
		var got []Header
		for _, d := range take(t, rx, len(want)) {
			got = append(got, d.Header)
		}
		assert.Equal(t, want, got)

		require.NoError(t, rx.ReceiveHeaders(false))
		tx.Packet(rx.Addr(), Header{TrafficClass: 4}, 10)
		flush(t, tx)
		assert.Equal(t, Header{}, take(t, rx, 1)[0].Header)
	})
}

// Ordinary sockets see the header fields too.
func TestHeadersAtAnotherSocket(t *testing.T) {
	tx := listen(t, Config{Addr: loopback4})
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(sock)
	require.NoError(t, unix.Bind(sock, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, unix.SetsockoptInt(sock, unix.IPPROTO_IP, unix.IP_RECVTOS, 1))
	limit := unix.NsecToTimeval(testTimeout.Nanoseconds())
	require.NoError(t, unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	name, err := unix.Getsockname(sock)
	require.NoError(t, err)
	tx.Packet(netip.AddrPortFrom(loopback4.Addr(), uint16(name.(*unix.SockaddrInet4).Port)), Header{TrafficClass: 0xb9}, 8)
	flush(t, tx)
	data, control := make([]byte, 16), make([]byte, 64)
	n, used, _, _, err := unix.Recvmsg(sock, data, control, 0)
	require.NoError(t, err)
	assert.Equal(t, 8, n)
	messages, err := unix.ParseSocketControlMessage(control[:used])
	require.NoError(t, err)
	require.Len(t, messages, 1)
	assert.Equal(t, []byte{0xb9}, messages[0].Data)
}

// Packets with default headers have no additional control messages.
func TestDefaultHeaderCostsNothing(t *testing.T) {
	var c sendControl
	first, size := c.fill(&message{dst: loopback4, packets: 1}, 0)
	assert.Nil(t, first)
	assert.Zero(t, size)
	_, size = c.fill(&message{dst: loopback6, packets: 2, header: Header{FlowLabel: 7}}, 0)
	assert.Equal(t, unix.CmsgSpace(2), size)
	_, size = c.fill(&message{dst: loopback6, packets: 2, header: Header{TrafficClass: 1, HopLimit: 1}}, 0)
	assert.Equal(t, unix.CmsgSpace(2)+2*unix.CmsgSpace(4), size)
}

// No control data that the kernel could write is read beyond its end.
func FuzzReceiveControl(f *testing.F) {
	f.Add([]byte{20, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 104, 0, 0, 0, 1, 2, 3, 4})
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255, 17, 0, 0, 0, 104, 0, 0, 0, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, data []byte) {
		var c receiveControl
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&c)), unsafe.Sizeof(c)), data)
		_, h := c.parse(uint64(len(data)))
		assert.LessOrEqual(t, h.FlowLabel, uint32(maxFlowLabel))
	})
}
