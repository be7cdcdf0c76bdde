//go:build linux

package samples

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/pair"
	"github.com/verbena-rdma/verbena/test/netns"
)

func needProgram(t *testing.T, name string) {
	t.Helper()
	_, err := exec.LookPath(name)
	netns.Need(t, err, "the test needs "+name)
}

// hosts is two network namespaces with a cable between them.
type hosts struct {
	t    *testing.T
	list []netns.Host
}

// Addresses of the two hosts, and the interface that each has.
const (
	cable       = netns.Link
	secondHost  = "10.11.0.2"
	firstHost6  = "fd11::1"
	secondHost6 = "fd11::2"
)

func newHosts(t *testing.T, mtu int) *hosts {
	t.Helper()
	return &hosts{t, netns.Hosts(t, 2, mtu)}
}

// on is the beginning of a command that runs on a host.
func (h *hosts) on(i int) []string { return h.list[i].Run() }

// Short: at the larger MTU over the bad cable alone.
func TestTwoHosts(t *testing.T) {
	devices := map[string][2]string{
		"interface": {"soft-" + cable, "soft-" + cable},
		"IPv6":      {"soft-" + firstHost6, "soft-" + secondHost6},
		"plain UDP": {"soft-" + cable + "?segmentation=off&coalescing=off&batch=off", "soft-" + cable},
		"bad cable": {"soft-" + cable + "?loss=0.05&duplicate=0.05&reorder=0.05&corrupt=0.01&seed=1",
			"soft-" + cable + "?loss=0.05&duplicate=0.05&reorder=0.05&corrupt=0.01&seed=2"},
	}
	for _, mtu := range []int{1500, 9000} {
		for name, device := range devices {
			if testing.Short() && mtu == 9000 && name != "bad cable" {
				continue
			}
			t.Run(fmt.Sprintf("MTU %d/%s", mtu, name), func(t *testing.T) {
				t.Parallel()
				h := newHosts(t, mtu)
				pairs := pair.Workloads()
				if name == "interface" {
					pairs = append(pairs, pair.Samples()...)
				}
				options := func(host string) pair.Options {
					return pair.Options{
						Address:       host + ":7471",
						RequesterArgs: []string{"-d", device[0]}, ResponderArgs: []string{"-d", device[1]},
						RequesterPrefix: h.on(0), ResponderPrefix: h.on(1),
					}
				}
				for _, e := range pair.Examples() {
					host := secondHost
					if e.ByDevice && name == "IPv6" {
						host = "[" + secondHost6 + "]"
					}
					t.Run(e.Server, func(t *testing.T) { runExample(t, e, options(host)) })
				}
				for _, p := range pairs {
					t.Run(p.Name, func(t *testing.T) {
						o := options(secondHost)
						o.Way, o.Size = pair.TCP, 300_001
						runPair(t, p, o)
					})
				}
			})
		}
	}
}

// decode has tshark take a capture apart: one row for each RoCEv2 packet, with
// the fields in their order.
func decode(t *testing.T, capture string, fields ...string) (rows [][]string) {
	t.Helper()
	// Without data, a datagram of UD looks like Ethernet over InfiniBand to tshark, and malformed.
	args := []string{"-n", "--disable-protocol", "infiniband.eoib", "-r", capture, "-Y", "udp.port == 4791", "-T", "fields", "-E", "occurrence=f"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	cmd := exec.Command("tshark", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s", &stderr)
	for line := range strings.Lines(string(out)) {
		row := strings.Split(strings.TrimRight(line, "\n"), "\t")
		require.Len(t, row, len(fields))
		rows = append(rows, row)
	}
	return rows
}

// Opcodes of reliable connections (IBTA 9.2, table 38).
var (
	sendOpcodes   = []string{"0", "2"}   // first, last
	sendImmediate = []string{"0", "3"}   // first, last with immediate
	writeOpcodes  = []string{"6", "8"}   // first, last
	writeImm      = []string{"6", "9"}   // first, last with immediate
	readOpcodes   = []string{"12", "13"} // request, response first
)

// packets is what must be on the wire for an operation that moves more than fits in
// one packet.
var packets = map[string][]string{
	"send":             append(sendOpcodes, "17"),
	"send_immediate":   append(sendImmediate, "17"),
	"write":            append(writeOpcodes, "17"),
	"write_immediate":  append(writeImm, "17"),
	"read":             append(readOpcodes, "15"), // response last
	"compare_and_swap": {"19", "18"},
	"fetch_and_add":    {"20", "18"},
	"sync_event":       {"10", "12", "16"}, // write only, read request, response only
}

// checkPackets checks that a capture of a pair decodes without a complaint.
func checkPackets(t *testing.T, p pair.Pair, capture string) {
	t.Helper()
	rows := decode(t, capture, "_ws.malformed", "_ws.expert.severity", "infiniband.bth.opcode", "infiniband.invariant.crc", "udp.dstport")
	require.NotEmpty(t, rows)
	opcodes := map[string]int{}
	for i, row := range rows {
		assert.Empty(t, row[0], "packet %d of %s is malformed", i, capture)
		assert.Empty(t, row[1], "packet %d of %s", i, capture)
		assert.NotEmpty(t, row[3], "packet %d of %s has no ICRC", i, capture)
		assert.Equal(t, "4791", row[4], "packet %d of %s", i, capture)
		opcodes[row[2]]++
	}
	for _, opcode := range packets[p.Operation] {
		assert.Positive(t, opcodes[opcode], "opcode %s; there are %v", opcode, opcodes)
	}
	known := []string{"6", "7", "8", "10", "17"} // of writes, one of which begins every connection
	for opcode := range opcodes {
		assert.Contains(t, append(append(known, packets[p.Operation]...), "1", "14"), opcode)
	}
}

// The capture that the device itself makes. Short: at one end of each operation.
func TestDeviceCapture(t *testing.T) {
	needProgram(t, "tshark")
	for i, p := range pair.Workloads() {
		t.Run(p.Name, func(t *testing.T) {
			dir := t.TempDir()
			ours, theirs := filepath.Join(dir, "requester.pcap"), filepath.Join(dir, "responder.pcap")
			runPair(t, p, pair.Options{Way: pair.Dir, Size: 50_000,
				RequesterArgs: []string{"-d", "soft-lo?capture=" + ours}, ResponderArgs: []string{"-d", "soft-lo?capture=" + theirs}})
			for j, capture := range []string{ours, theirs} {
				if !testing.Short() || i%2 == j {
					checkPackets(t, p, capture)
				}
			}
		})
	}
}

// What somebody else sees on the wire. Short: each operation at one of the MTUs.
func TestWireCapture(t *testing.T) {
	needProgram(t, "tshark")
	needProgram(t, "dumpcap")
	for j, mtu := range []int{1500, 9000} {
		t.Run(fmt.Sprintf("MTU %d", mtu), func(t *testing.T) {
			h := newHosts(t, mtu)
			for i, p := range pair.Workloads() {
				if testing.Short() && i%2 != j {
					continue
				}
				t.Run(p.Name, func(t *testing.T) {
					capture := filepath.Join(t.TempDir(), "wire.pcap")
					dumpcap := start(t, append(h.on(0), "dumpcap", "-q", "-P", "-i", cable, "-f", "udp", "-w", capture)...)
					dumpcap.await("File: ")
					device := "soft-" + cable + "?segmentation=off"
					runPair(t, p, pair.Options{
						Way: pair.TCP, Address: fmt.Sprintf("%s:%d", secondHost, 8471+i), Size: 50_000,
						RequesterArgs: []string{"-d", device}, ResponderArgs: []string{"-d", device},
						RequesterPrefix: h.on(0), ResponderPrefix: h.on(1),
					})
					h.flush(dumpcap, capture)
					checkPackets(t, p, capture)
				})
			}
		})
	}
}

// flush ends a capture once all packets so far are in its file, which the last of
// them, one of our own, shows.
func (h *hosts) flush(dumpcap *process, capture string) {
	const mark = "end of the capture"
	send := append(h.on(0), "bash", "-c", fmt.Sprintf("echo %s > /dev/udp/%s/9", mark, secondHost))
	require.Eventually(h.t, func() bool {
		out, err := exec.Command(send[0], send[1:]...).CombinedOutput()
		require.NoError(h.t, err, "%s", out)
		b, err := os.ReadFile(capture)
		require.NoError(h.t, err)
		return strings.Contains(string(b), mark)
	}, 5*time.Minute, 10*time.Millisecond)
	dumpcap.signal(syscall.SIGINT)
	assert.Zero(h.t, dumpcap.code())
}
