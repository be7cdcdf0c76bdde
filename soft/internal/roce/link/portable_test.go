package link

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// More packets arrive than the buffer holds, and Close ends a reader that waits for room.
func TestPortableFullBin(t *testing.T) {
	const packets = packetBufferDatagrams + 300
	for _, receive := range []bool{true, false} {
		tx := listen(t, Config{Addr: loopback4, Portable: true})
		rx := listen(t, Config{Addr: loopback4, Portable: true})
		for i := range packets {
			put(tx, rx.Addr(), fmt.Appendf(nil, "packet %d", i))
		}
		flush(t, tx)
		if !receive {
			continue
		}
		for i, d := range take(t, rx, packets) {
			require.Equal(t, fmt.Sprintf("packet %d", i), string(d.Data))
		}
	}
}

// An error of the system reaches the receiver, and the socket keeps working.
func TestPortableReadError(t *testing.T) {
	s := listen(t, Config{Addr: loopback4, Portable: true})
	require.NoError(t, s.io.(*portable).conn.SetReadDeadline(time.Unix(1, 0)))
	for range 3 {
		require.NoError(t, s.Wait(time.Now().Add(testTimeout)))
		_, err := s.Receive()
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	require.NoError(t, s.io.(*portable).conn.SetReadDeadline(time.Time{}))
	put(s, s.Addr(), []byte("x"))
	flush(t, s)
	for limit := time.Now().Add(testTimeout); ; {
		require.NoError(t, s.Wait(limit))
		got, err := s.Receive()
		if len(got) > 0 {
			assert.Equal(t, "x", string(got[0].Data))
			break
		}
		require.ErrorIs(t, err, os.ErrDeadlineExceeded) // one may be left
	}
}
