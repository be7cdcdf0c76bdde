package profiling_test

import (
	"bytes"
	"context"
	"errors"
	"runtime/pprof"
	"runtime/trace"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The goroutines of a device and of a stack have labels in a profile. A debugger may have stopped
// them anywhere: what counts is that they are there.
func TestLabels(t *testing.T) {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	stack, err := rsocket.New(rsocket.Config{Device: dev})
	require.NoError(t, err)
	defer func() { require.NoError(t, stack.Close()) }()
	var profile bytes.Buffer
	for _, label := range []string{`"device":"` + dev.Name() + `"`, `"verbena":"engine"`, `"engine":"rsocket"`, `"verbena":"packets"`} {
		for { // a goroutine that was started may not have begun
			profile.Reset()
			require.NoError(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
			if bytes.Contains(profile.Bytes(), []byte(label)) {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// A trace has the passes and the callbacks.
func TestRegions(t *testing.T) {
	var record bytes.Buffer
	if err := trace.Start(&record); err != nil {
		t.Skip("there is a trace already: ", err)
	}
	defer trace.Stop()
	stacks := rsocket.NewStacks("", rsocket.Config{})
	l, err := stacks.Listen("127.0.0.1:0")
	require.NoError(t, err)
	near, err := stacks.Dial(context.Background(), l.Addr().String())
	require.NoError(t, err)
	far, err := l.Accept()
	require.NoError(t, err)
	_, err = near.Write([]byte("x"))
	require.NoError(t, err)
	_, err = far.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, errors.Join(near.Close(), far.Close(), l.Close(), stacks.Close()))
	trace.Stop()
	for _, name := range []string{"pass", "function", "state callback", "task callback", "message callback", "connection callback"} {
		require.True(t, bytes.Contains(record.Bytes(), []byte("verbena "+name)), name)
	}
}
