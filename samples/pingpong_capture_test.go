//go:build linux

package samples

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPingPongCapture has another implementation read the packets.
func TestPingPongCapture(t *testing.T) {
	needProgram(t, "tshark")
	for service, want := range map[string]map[string]int{
		// Of 3 exchanges of 3 packets each, both directions (IBTA 9.2, table 38).
		"uc": {"32": 6, "33": 6, "34": 6},
		"ud": {"100": 6},
	} {
		capture := filepath.Join(t.TempDir(), "capture.pcap")
		size := map[string]string{"uc": "2501", "ud": "1021"}[service]
		args := []string{"-p", freePort(t), "-n", "3", "-s", size, "-d"}
		server := startServer(t, service, append(args, "soft-127.78.0.1")...)
		client := startPingPong(t, service, append(args, "soft-127.78.0.2?capture="+capture, "localhost")...)
		require.Zero(t, client.code(), client.said())
		require.Zero(t, server.code(), server.said())
		opcodes := map[string]int{}
		for _, row := range decode(t, capture, "_ws.malformed", "_ws.expert.severity", "infiniband.bth.opcode", "infiniband.invariant.crc", "infiniband.deth.q_key") {
			assert.Empty(t, row[0]+row[1])
			assert.NotEmpty(t, row[3])
			assert.Equal(t, map[string]string{"ud": "0x0000000011111111"}[service], row[4])
			opcodes[row[2]]++
		}
		assert.Equal(t, want, opcodes)
	}
}
