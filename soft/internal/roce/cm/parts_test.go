package cm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTimingCodes: codes and times.
func TestTimingCodes(t *testing.T) {
	t.Parallel()
	require.Equal(t, 4096*time.Nanosecond, timeoutDuration(0))
	require.Equal(t, 4294967296*time.Nanosecond, timeoutDuration(20))
	require.Equal(t, timeoutDuration(31), timeoutDuration(255))
	for code := range uint8(32) {
		require.Equal(t, code, timeoutCode(timeoutDuration(code)))
		require.Equal(t, min(code+1, 31), timeoutCode(timeoutDuration(code)+1))
		require.Equal(t, min(code+1, 31), ackTimeout(code, code))
	}
	require.Equal(t, uint8(18), ackTimeout(16, 17))
	require.Equal(t, uint8(18), ackTimeout(10, 17))
	require.Equal(t, uint8(17), ackTimeout(16, 16))
	require.Equal(t, uint8(0), timeoutCode(0))
	require.Equal(t, uint8(31), timeoutCode(time.Duration(1<<62)))
}
