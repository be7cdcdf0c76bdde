package samples

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// multicastProcesses runs a sender and its receivers, each with its device.
func multicastProcesses(t *testing.T, group string, sender []string, receivers ...[]string) {
	t.Helper()
	var list []*process
	common := []string{"-mg", group, "-timeout", patience}
	for _, args := range receivers {
		list = append(list, start(t, append(args, common...)...))
	}
	for _, p := range list {
		p.await("joined")
	}
	args := append(append(sender, common...), "-n", fmt.Sprint(len(receivers)), "-s", "to everybody")
	list = append(list, start(t, args...))
	succeed(t, list...)
	const text = `"to everybody" (12 bytes, CRC-32C `
	for _, p := range list[:len(receivers)] {
		assert.Contains(t, p.stdout.String(), "received: "+text)
	}
	assert.Contains(t, list[len(receivers)].stdout.String(), "sent: "+text)
}

// Several receivers on one host, at the sender's address and at others.
func TestMulticastReceivers(t *testing.T) {
	receive := func(device string) []string { return []string{"multicast_receive", "-d", device} }
	multicastProcesses(t, "239.255.75.1", []string{"multicast_send", "-d", "soft-lo"},
		receive("soft-lo"), receive("soft-lo"), receive("soft-127.75.0.1"))
}

// Receivers on two hosts, IPv4 and IPv6.
func TestMulticastOnTwoHosts(t *testing.T) {
	h := newHosts(t, 1500)
	for i := range h.list { // the kernel makes the route once it has noticed the carrier
		require.Eventually(t, func() bool {
			cmd := append(h.on(i), "ip", "-6", "route", "show", "table", "local", "dev", cable)
			out, err := exec.Command(cmd[0], cmd[1:]...).Output()
			return err == nil && strings.Contains(string(out), "ff00::/8")
		}, 5*time.Minute, 10*time.Millisecond)
	}
	for group, gid := range map[string]string{"239.255.75.2": "0", "ff15::7501": "1", "ff02::7501": "1"} {
		t.Run(group, func(t *testing.T) {
			on := func(host int, name string) []string {
				return append(h.on(host), filepath.Join(bin, name), "-d", "soft-"+cable, "-g", gid)
			}
			multicastProcesses(t, group, on(0, "multicast_send"), on(0, "multicast_receive"), on(1, "multicast_receive"), on(1, "multicast_receive"))
		})
	}
}

// TestMulticastCapture has another implementation read the packets.
func TestMulticastCapture(t *testing.T) {
	needProgram(t, "tshark")
	capture := filepath.Join(t.TempDir(), "capture.pcap")
	multicastProcesses(t, "239.255.75.3", []string{"multicast_send", "-d", "soft-127.75.0.2"},
		[]string{"multicast_receive", "-d", "soft-127.75.0.3?capture=" + capture})
	rows := decode(t, capture, "_ws.malformed", "_ws.expert.severity", "infiniband.bth.opcode", "infiniband.bth.destqp", "ip.ttl", "ip.dst")
	require.NotEmpty(t, rows)
	came := 0
	for _, row := range rows {
		assert.Empty(t, row[0]+row[1])
		assert.Equal(t, "100", row[2], "send only, of UD")
		if row[5] == "239.255.75.3" {
			came++
			assert.Equal(t, []string{"0xffffff", "1"}, row[3:5])
		}
	}
	assert.Positive(t, came)
	assert.Greater(t, len(rows), came, "and the answer")
}
