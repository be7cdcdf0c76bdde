package profiling_test

import (
	"bytes"
	"context"
	"runtime/pprof"
	"runtime/trace"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
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
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	engine := pe.New(pe.Config{})
	ctx, err := rdma.New(dev, rdma.Config{Engine: engine})
	require.NoError(t, err)
	require.NoError(t, ctx.Start())
	for ctx.State() != pe.Running {
		_, err := engine.Progress()
		require.NoError(t, err)
	}
	require.NoError(t, ctx.Stop())
	require.NoError(t, engine.Run(context.Background()))
	require.NoError(t, ctx.Close())
	require.NoError(t, engine.Close())
	require.NoError(t, dev.Close())
	trace.Stop()
	require.Contains(t, record.String(), "verbena pass")
}
