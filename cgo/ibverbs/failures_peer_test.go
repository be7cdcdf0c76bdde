//go:build linux && cgo && verbs

package ibverbs_test

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/process"
	"github.com/verbena-rdma/verbena/verbs"
)

// peerVariable says that this process is the end of a connection that will be killed. It
// has an end (active or passive), a device (rxe or soft), the address of the software
// device, the phase up to which to go (request, response, established) and, for an active
// end, what to dial.
const peerVariable = "VERBENA_FAILURES_PEER"

// runPeer is the process. It says on its standard output where it listens, and when it
// has reached its phase; then it waits to be killed, or for its parent to end.
func runPeer(t *testing.T, spec string) {
	f := strings.Fields(spec)
	c := &connecting{t: t, devicePair: devicePair{f[1], f[1]}}
	c.addrs[activeEnd] = netip.MustParseAddr(f[2])
	c.addrs[passiveEnd] = c.addrs[activeEnd]
	if f[1] == "rxe" {
		c.adapter = openAdapter(t)
	}
	phase := f[3]
	if f[0] == "active" {
		end := c.open(activeEnd)
		c.a = end.Connect(verbs.CMDial{Addr: netip.MustParseAddrPort(f[4])}, "")
		if phase != "request" {
			end.Next(verbs.CMConnectResponse)
		}
		if phase == "established" {
			c.establish()
		}
	} else {
		end := c.open(passiveEnd)
		_, dial := end.Listen(verbs.CMListen{})
		fmt.Printf("%s%v\n", peerListens, dial.Addr)
		c.b = end.Next(verbs.CMConnectRequest).ID
		if phase != "request" {
			c.accept()
		}
		if phase == "established" {
			end.Next(verbs.CMEstablished)
		}
	}
	fmt.Printf("%s\n", peerReady)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

const peerListens, peerReady = "PEER LISTENS ", "PEER IS READY"

// peer is such a process, as its parent sees it.
type peer struct {
	*process.Process
	t     *testing.T
	lines *bufio.Scanner
}

func (c *connecting) startPeer(end int, phase, dial string) *peer {
	c.t.Helper()
	name := [2]string{"active", "passive"}[end]
	p := process.Start(c.t, process.Program{
		Args: []string{os.Args[0], "-test.v", "-test.run", "^TestGuestFailures$"},
		Env:  []string{fmt.Sprintf("%s=%s %s %v %s %s", peerVariable, name, c.device(end), c.addrs[end], phase, dial)}, In: true, Out: true,
	})
	return &peer{p, c.t, bufio.NewScanner(p.Out)}
}

// await waits for a line of the process, and returns the rest of it.
func (p *peer) await(begin string) string {
	p.t.Helper()
	var all []string
	for p.lines.Scan() {
		if _, rest, found := strings.Cut(p.lines.Text(), begin); found {
			return rest
		}
		all = append(all, p.lines.Text())
	}
	require.Fail(p.t, "the other process has ended", "%s", strings.Join(all, "\n"))
	return ""
}

// activePeer connects a process to an end of this one, as far as a phase, and returns what
// kills it.
func (c *connecting) activePeer(phase string) (kill func()) {
	c.t.Helper()
	passive := c.open(passiveEnd)
	_, dial := passive.Listen(verbs.CMListen{})
	p := c.startPeer(activeEnd, phase, dial.Addr.String())
	c.b = passive.Next(verbs.CMConnectRequest).ID
	if phase != "request" {
		c.accept()
	}
	p.await(peerReady)
	return p.Kill
}

// passivePeer connects this process's end to another one.
func (c *connecting) passivePeer(phase string) (kill func()) {
	c.t.Helper()
	active := c.open(activeEnd)
	p := c.startPeer(passiveEnd, phase, "")
	addr := netip.MustParseAddrPort(p.await(peerListens))
	c.a = active.Connect(verbs.CMDial{Addr: addr}, "")
	if phase == "established" {
		active.Next(verbs.CMConnectResponse)
		c.establish()
	}
	p.await(peerReady)
	return p.Kill
}
