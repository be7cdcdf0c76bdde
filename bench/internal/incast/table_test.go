package incast

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestShares(t *testing.T) {
	rate, fairness := shares([]int{100, 100, 100, 100}, 2*time.Second)
	assert.InDelta(t, 200, rate, 0)
	assert.InDelta(t, 1, fairness, 1e-9)
	_, fairness = shares([]int{100, 0, 0, 0}, time.Second)
	assert.InDelta(t, 0.25, fairness, 1e-9)
	rate, fairness = shares([]int{0, 0}, time.Second)
	assert.Zero(t, rate)
	assert.Zero(t, fairness)
}

func TestTable(t *testing.T) {
	o := options{senders: 64, processes: 4, window: 4, operation: "write", size: 65536, mtu: 1500, rate: 1000, queue: 100, rounds: 2}
	text := table(o, []string{"congestion=on"}, [][]figures{{
		{rate: 100e6, fairness: 0.9, dropped: 10, counters: map[string]uint64{"np_cnp_sent": 4, "rp_cnp_handled": 2}},
		{rate: 110e6, fairness: 0.8, dropped: 20, failed: 1, counters: map[string]uint64{"completer_retry_err": 6}},
	}})
	assert.Contains(t, text, "64 connections of 4 processes, each with 4 × write of 65536 bytes; MTU 1500; 1000 Mbit/s, a queue of 100 packets; medians of 2 rounds:")
	assert.Contains(t, text, "| `congestion=on` | 105.0 | 0.84 | 0.850, 0.800 | 15 | 1 | 3 | 2, 1 |\n")
	o.rate = 0
	assert.Contains(t, table(o, []string{"x"}, [][]figures{{{rate: 1e6, fairness: 1}}}), "no limit; medians of 2 rounds:\n\n")
}
