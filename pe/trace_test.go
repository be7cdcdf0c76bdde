package pe_test

import (
	"bytes"
	"runtime/trace"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
)

// startTrace starts a trace. stop ends it, and returns what was recorded.
func startTrace(t *testing.T) (stop func() []byte) {
	var record bytes.Buffer
	if err := trace.Start(&record); err != nil {
		t.Skip("there is a trace already: ", err)
	}
	return func() []byte {
		trace.Stop()
		return record.Bytes()
	}
}

// Only passes with callbacks leave regions in a trace: each region of the others would take more than
// 10 bytes.
func TestIdlePassesAreNotTraced(t *testing.T) {
	const passes = 200_000
	e, _ := connected(t, 1)
	quiesce(t, e)
	stop := startTrace(t)
	defer trace.Stop()
	for range passes {
		_, err := e.Progress()
		assert.NoError(t, err)
	}
	record := stop()
	require.Less(t, len(record), 10*passes)
	require.False(t, bytes.Contains(record, []byte("verbena pass")))
}

// Callbacks leave regions, inside one of their pass, also where one panics.
func TestCallbacksAreTraced(t *testing.T) {
	stop := startTrace(t)
	defer trace.Stop()
	e, d := newEngine(t, pe.Config{}), newDevice(t, 1)
	d.OnStateChange(func(_, _ pe.State) {})
	require.NoError(t, e.Connect(d))
	require.NoError(t, d.Start())
	require.NoError(t, e.Do(func() { panic("a callback") }))
	require.PanicsWithValue(t, "a callback", func() { _, _ = e.Progress() })
	require.NoError(t, e.Do(func() { assert.NoError(t, d.Stop()) }))
	require.NoError(t, e.Run(t.Context()))
	record := stop()
	for _, name := range []string{"verbena pass", "verbena function", "verbena state callback"} {
		require.True(t, bytes.Contains(record, []byte(name)), name)
	}
}
