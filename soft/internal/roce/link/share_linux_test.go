package link

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestShare: sockets that share an address get the packets that are steered to them, and no
// other socket can bind the address.
func TestShare(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		first := listen(t, cfg)
		second, err := first.Share(nil, 0)
		if cfg.Portable {
			require.ErrorIs(t, err, errors.ErrUnsupported)
			require.ErrorIs(t, first.Steer([]int{0}), errors.ErrUnsupported)
			return
		}
		require.NoError(t, err)
		defer second.Close()
		assert.Equal(t, first.Addr(), second.Addr())
		third, err := second.Share(nil, 0)
		require.NoError(t, err)
		defer third.Close()
		require.NoError(t, first.Steer([]int{0, 1, 2}))

		taken := cfg
		taken.Addr = first.Addr()
		_, err = Listen(taken)
		require.ErrorIs(t, err, syscall.EADDRINUSE)

		sender := listen(t, cfg)
		for qpn, want := range map[uint32]*Socket{
			0x10: first, 0x11: second, 0x12: third, 0xffff01: second, 0x7fff0: first,
			1: first, 0: first, // management
			0x13: first, 0x1f: first, // not steered
		} {
			put(sender, first.Addr(), toQP(qpn, "x"))
			flush(t, sender)
			got := take(t, want, 1)
			assert.Equal(t, toQP(qpn, "x"), got[0].Data, "%#x", qpn)
		}
		put(sender, first.Addr(), []byte("short"))
		flush(t, sender)
		assert.Equal(t, "short", string(take(t, first, 1)[0].Data))

		// What they send has the same source.
		put(third, sender.Addr(), []byte("hello"))
		flush(t, third)
		assert.Equal(t, first.Source(), take(t, sender, 1)[0].Src)
	})
}

// TestSharedAddressIsFreeAgain: the address is taken until the last socket is closed.
func TestSharedAddressIsFreeAgain(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		if cfg.Portable {
			t.Skip("cannot share")
		}
		first := listen(t, cfg)
		second, err := first.Share(nil, 0)
		require.NoError(t, err)
		cfg.Addr = first.Addr()
		require.NoError(t, first.Close())
		_, err = Listen(cfg)
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.NoError(t, second.Close())
		again, err := Listen(cfg)
		require.NoError(t, err)
		require.NoError(t, again.Close())
	})
}
