package samples

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pingPongProgram is one end of a ping-pong in the guest: our program or the C one of the same
// name.
type pingPongProgram struct {
	device string // rxe0, or an address of the other host
	isC    bool
}

var (
	cOnRxe = pingPongProgram{"rxe0", true}
	onRxe  = pingPongProgram{"rxe0", false}
	onSoft = pingPongProgram{"soft", false}
)

// pingPongCase is a number of runs of two ping-pong programs.
type pingPongCase struct {
	service        string // rc, uc or ud
	server, client pingPongProgram
	flagSets       []string // flags
}

// TestGuestInterop runs the ping-pong programs with the C programs of the same name, on the
// kernel's rxe, in both roles, and with each other on both drivers. Two pairs run at a time.
// Short: one run of each pair, with other flags for each service, and IPv6 for one service;
// matrix covers RC between the drivers.
func TestGuestInterop(t *testing.T) {
	requireGuest(t)
	// Each slot has a TCP port, and addresses for a software device of its own.
	slots := make(chan int, 2)
	for i := range cap(slots) {
		slots <- i
		for _, address := range []string{slotAddress(i, 4) + "/24", slotAddress(i, 6) + "/64"} {
			out, err := exec.Command("ip", "-n", "s", "addr", "add", address, "dev", "v1").CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
	}
	short := []string{"-c -e -n 20", "-n 5"}
	for i, service := range []string{"rc", "uc", "ud"} {
		for _, b := range []pingPongCase{
			{service, cOnRxe, onSoft, flagSets(service)},
			{service, onSoft, cOnRxe, flagSets(service)},
			{service, cOnRxe, onRxe, short},
			{service, onRxe, cOnRxe, short},
			{service, onRxe, onSoft, []string{"-c -e -n 20", "-n 5 -s 0"}},
			{service, onSoft, onRxe, []string{"-c -e -n 20", "-n 5 -s 0"}},
		} {
			with := b.server == cOnRxe || b.client == cOnRxe
			if testing.Short() {
				if !with && service == "rc" {
					continue
				}
				b.flagSets = b.flagSets[i%len(b.flagSets):][:1]
			}
			for _, flags := range b.flagSets {
				b.run(t, slots, 4, flags)
			}
			if testing.Short() && service == "rc" {
				b.run(t, slots, 6, "-c -n 20")
			} else if !testing.Short() && with {
				b.run(t, slots, 6, "-c -n 20")
				b.run(t, slots, 6, "-c -e -n 20")
			}
		}
	}
}

func slotAddress(slot, family int) string {
	if family == 6 {
		return fmt.Sprintf("fd00::2%d", slot)
	}
	return fmt.Sprintf("10.0.0.2%d", slot)
}

// run runs server and client in a free slot.
func (b pingPongCase) run(t *testing.T, slots chan int, family int, flags string) {
	name := func(p pingPongProgram) string {
		if p.isC {
			return "ibv"
		}
		return strings.TrimSuffix(p.device, "0")
	}
	t.Run(fmt.Sprintf("%s/%s serves %s/IPv%d %s", b.service, name(b.server), name(b.client), family, flags), func(t *testing.T) {
		t.Parallel()
		slot := <-slots
		defer func() { slots <- slot }()
		port := 18515 + slot
		server := start(t, b.command(b.server, slot, port, family, flags)...)
		server.listens(port)
		// RoCEv2 packets go to the address of the server, too.
		address := map[bool]string{true: slotAddress(slot, 4), false: "rxe"}[b.server == onSoft]
		client := start(t, append(b.command(b.client, slot, port, family, flags), address)...)
		for _, p := range []*process{server, client} {
			hung := time.AfterFunc(2*time.Minute, func() { _ = p.cmd.Process.Kill() })
			assert.Zero(t, p.code(), "%v: %s", p.cmd.Args, p.said())
			hung.Stop()
			assert.Contains(t, p.stdout.String(), "usec/iter", "%v", p.cmd.Args)
			assert.NotContains(t, p.said(), "invalid", "%v", p.cmd.Args)
		}
	})
}

// command is the command line of a program. Ours find an IPv4 address by themselves.
func (b pingPongCase) command(p pingPongProgram, slot, port, family int, flags string) []string {
	program, device, gid := "/samples/verbs_"+b.service+"_pingpong", p.device, []string(nil)
	switch {
	case p == onSoft:
		device, gid = "soft-"+slotAddress(slot, family), []string{"-g", "0"}
	case family == 6:
		gid = []string{"-g", "2"}
	case p.isC:
		gid = []string{"-g", "1"}
	}
	if p.isC {
		program = "ibv_" + b.service + "_pingpong"
	}
	return slices.Concat(commandPrefix(device), []string{program, "-d", device, "-p", strconv.Itoa(port)}, gid, strings.Fields(flags))
}

// listens waits until something listens on the port in the process's network
// namespace.
func (p *process) listens(port int) {
	p.t.Helper()
	// The fields are the local address, the peer's and the state; 0A is listening.
	want := fmt.Sprintf(":%04X ", port)
	require.Eventually(p.t, func() bool {
		for _, file := range []string{"tcp", "tcp6"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", p.cmd.Process.Pid, file))
			if err != nil {
				return false
			}
			for line := range strings.Lines(string(text)) {
				if strings.Contains(line, want) && strings.Contains(line, ":0000 0A ") {
					return true
				}
			}
		}
		return false
	}, 5*time.Minute, 10*time.Millisecond, "%v does not listen: %s", p.cmd.Args, p.said())
}

// flagSets are the flags of the runs. The largest message is for RC alone: the other services
// do not retransmit lost packets.
func flagSets(service string) []string {
	if service == "ud" {
		return []string{"-c -n 20", "-c -e -n 50", "-c -n 5 -s 1", "-c -n 5 -s 1023", "-c -n 5 -s 4096", "-n 5 -s 0"}
	}
	list := []string{"-c -n 20", "-c -e -n 50", "-c -n 5 -s 1", "-c -n 5 -s 255 -m 256", "-c -n 5 -s 1023 -m 512",
		"-c -n 5 -s 65537 -m 4096", "-c -n 1 -s 1048576 -m 2048"}
	if service == "rc" {
		list = append(list, "-c -n 2 -s 16777216 -m 4096")
	}
	return list
}
