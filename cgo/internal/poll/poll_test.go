//go:build linux

package poll

import (
	"bytes"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWatch(t *testing.T) {
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	got := make(chan byte, 10)
	stop, err := Watch(pipe[0], "bytes", "pipe", func() {
		var b [1]byte
		for {
			if n, err := unix.Read(pipe[0], b[:]); n != 1 || err != nil {
				return
			}
			got <- b[0]
		}
	})
	require.NoError(t, err)
	for want := range byte(3) {
		_, err := unix.Write(pipe[1], []byte{want})
		require.NoError(t, err)
		select {
		case b := <-got:
			require.Equal(t, want, b)
		case <-time.After(time.Minute):
			require.Fail(t, "not called")
		}
	}
	var profile bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
	require.Contains(t, profile.String(), `"device":"pipe"`)
	stop()
	_, err = unix.Write(pipe[1], []byte{9})
	require.NoError(t, err)
	require.Empty(t, got, "stopped")

	_, err = Watch(-1, "nothing", "none", func() {})
	require.ErrorIs(t, err, unix.EBADF)
}
