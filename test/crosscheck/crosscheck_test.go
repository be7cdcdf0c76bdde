package crosscheck

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onSim runs a workload on simulated hosts, with bad links for odd seeds.
func onSim(t *testing.T, seed uint64) (result *outcome) {
	synctest.Test(t, func(t *testing.T) {
		s := sim.New(t, seed)
		if seed%2 == 1 {
			s.SetDefaultLink(sim.LinkConfig{
				Latency: 5 * time.Microsecond, Jitter: 3 * time.Microsecond, Loss: 0.02, Duplicate: 0.02, Reorder: 0.02, Corrupt: 0.01,
			})
		}
		result = run(t, s.Host("a").Device(), s.Host("b").Device(), seed, func() { s.SetDefaultLink(sim.LinkConfig{Latency: 5 * time.Microsecond}) })
	})
	return result
}

func run(t *testing.T, a, b verbs.Device, seed uint64, noLoss func()) *outcome {
	t.Helper()
	result, err := runWorkload(a, b, seed, noLoss)
	require.NoError(t, err, "seed %d", seed)
	return result
}

// Random workloads lead to the same completions, statuses and bytes on simulated devices, also
// where packets are lost, as between software devices.
func TestWorkloads(t *testing.T) {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	compare(t, dev, 200, 20)
}

// compare runs workloads on a device, with itself, and on simulated hosts: as many as full says,
// or as short says in the short form.
func compare(t *testing.T, dev verbs.Device, full, short int) {
	t.Helper()
	workloads := full
	if testing.Short() {
		workloads = short
	}
	count := map[string]int{}
	total := 0
	for seed := uint64(1); seed <= uint64(workloads); seed++ {
		want, got := run(t, dev, dev, seed, nil), onSim(t, seed)
		if dev.Driver() != "soft" {
			got.Refuser = ""
			// For a message of several packets that is too long for its receive, rxe reports errors
			// of the operation, and not of the length as IBTA 11.6.2 has it.
			if want.Ending == "message too long" {
				continue
			}
		}
		require.Equal(t, want, got, "seed %d", seed)
		count[want.Ending]++
		total += want.Count
	}
	t.Logf("%d completions and messages; workloads by ending: %v", total, count)
}
