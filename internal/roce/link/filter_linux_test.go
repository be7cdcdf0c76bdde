package link

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// toQP begins like a packet for a queue pair.
func toQP(qpn uint32, text string) []byte {
	return append([]byte{100, 0, 0xff, 0xff, 0, byte(qpn >> 16), byte(qpn >> 8), byte(qpn)}, text...)
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
			list := append(append(append([]netip.Addr{}, others[:place]...), a.Addr().Addr()), others[place:]...)
			err := s.Ignore(1, list)
			if cfg.Portable {
				require.ErrorIs(t, err, errors.ErrUnsupported)
				return
			}
			require.NoError(t, err)
			for _, packet := range [][]byte{toQP(1, "gone"), toQP(0x10001, "other"), []byte("short"), toQP(2, "fine")} {
				put(a, s.Addr(), packet, len(packet), 0)
				flush(t, a) // no train: the first packet would decide for all
			}
			got := take(t, s, 2)
			assert.Equal(t, "other", string(got[0].Data[8:]))
			assert.Equal(t, "fine", string(got[1].Data[8:]))
		}
		require.NoError(t, s.Ignore(1, others))
		put(a, s.Addr(), toQP(1, "of another"), 8, 0)
		flush(t, a)
		assert.Equal(t, "of another", string(take(t, s, 1)[0].Data[8:]))
		require.NoError(t, s.Ignore(1, []netip.Addr{a.Addr().Addr()}))
		require.NoError(t, s.Ignore(1, nil))
		require.Error(t, s.Ignore(1, nil), "there is none")
		put(a, s.Addr(), toQP(1, "again"), 8, 0)
		flush(t, a)
		assert.Equal(t, "again", string(take(t, s, 1)[0].Data[8:]))
	})
}
