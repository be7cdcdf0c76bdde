//go:build !race

package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// The planted fault is found, and made small.
func TestPlantedFault(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestPayments$", "-test.timeout=10m", "-sim.seeds=1000")
	cmd.Env = append(os.Environ(), "VERBENA_PLANTED_FAULT=double")
	output, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(output), "is made again")
	require.Contains(t, string(output), "sim.Replay(t, ")
}
