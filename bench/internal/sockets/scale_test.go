package sockets

import (
	"encoding/json"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeProcess is a process whose replies come from a function.
func fakeProcess(t *testing.T, answer func(request) reply) *process {
	requests, to := io.Pipe()
	from, replies := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		in, out := json.NewDecoder(requests), json.NewEncoder(replies)
		for {
			var q request
			if in.Decode(&q) != nil || out.Encode(answer(q)) != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		assert.NoError(t, to.Close())
		<-ended
	})
	return &process{to: json.NewEncoder(to), from: json.NewDecoder(from)}
}

// The client may have all connections while the server has accepted some of them. Those that come
// later are not taken for ended ones, and are measured too.
func TestConnectionsThatAreAcceptedLate(t *testing.T) {
	const connections = 10
	accepted, looks := 0, 0
	p := &pair{
		client: fakeProcess(t, func(q request) reply {
			assert.Equal(t, request{Do: "hold", Count: connections, Size: readSize}, q)
			return reply{Value: 0.5}
		}),
		server: fakeProcess(t, func(q request) (r reply) {
			assert.Equal(t, request{Do: "counts"}, q)
			looks++
			for range accepted {
				r.Values = append(r.Values, float64(1000*looks))
			}
			accepted = min(accepted+5, connections)
			return r
		}),
	}
	taken, err := p.hold(connections)
	require.NoError(t, err)
	assert.InDelta(t, 0.5, taken, 0)
	list, err := rates(p, time.Millisecond)
	require.NoError(t, err)
	assert.Len(t, list, connections)
}

// Connections that end during a measurement are reported.
func TestConnectionsThatEnd(t *testing.T) {
	open := 4
	p := &pair{server: fakeProcess(t, func(request) (r reply) {
		open--
		return reply{Values: make([]float64, open)}
	})}
	_, err := rates(p, time.Millisecond)
	assert.EqualError(t, err, "1 of 3 connections have ended")
}
