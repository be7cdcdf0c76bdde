//go:build linux && cgo && verbs

package ibverbs_test

import (
	"net/netip"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/cmtest"
	"github.com/verbena-rdma/verbena/verbs"
)

// failureCase is one way in which a connection fails.
type failureCase struct {
	name string
	// needsLoss: messages get lost, which those between rxe and itself cannot.
	needsLoss bool
	// needsSoft: it takes a passive end that is no kernel's.
	needsSoftPassive bool
	alone            bool // there is no passive end
	killed           int  // 1: the active end is another process, 2: the passive one
	run              func(*connecting)
	want             [len(devicePairs)][2]string // see connecting.finish
}

func (w *failureCase) possible(p devicePair) bool {
	return !(w.needsLoss && p == devicePair{"rxe", "rxe"}) && !(w.needsSoftPassive && p.passive == "rxe")
}

// same is for cases in which all pairs of devices report the same.
func same(active, passive string) (want [len(devicePairs)][2]string) {
	for i := range want {
		want[i] = [2]string{active, passive}
	}
	return want
}

// none is for pairs with which a case is not possible.
var none [2]string

const (
	portClosed                  = "nobody listens, no process has the peer's UDP port"
	unanswered                  = "unreachable, not answered by the application"
	bothRejectedAndDisconnected = "rejected, 10 (second); disconnected (first) | disconnected (first); rejected, 10 (second)"
)

// failureCases has the rows of the table.
var failureCases = []failureCase{
	{
		name: "the passive application rejects",
		run: func(c *connecting) {
			c.request()
			c.begin()
			require.NoError(c.t, c.b.Reject([]byte("no")))
		},
		want: same("rejected, 28", ""),
	}, {
		name: "the active application rejects the response",
		run: func(c *connecting) {
			c.respond()
			c.begin()
			require.NoError(c.t, c.a.Reject([]byte("no")))
		},
		want: same("", "rejected, 28"),
	}, {
		name: "nobody listens on the port", alone: true,
		run: func(c *connecting) {
			active, passive := c.both()
			l, dial := passive.Listen(verbs.CMListen{})
			require.NoError(c.t, l.Close())
			c.end[passiveEnd] = nil
			c.begin()
			c.a = active.Connect(dial, "")
		},
		want: same("nobody listens", ""),
	}, {
		name: "wrong port space: the port listens for datagrams", alone: true,
		run: func(c *connecting) {
			active, passive := c.both()
			_, dial := passive.Listen(verbs.CMListen{Type: verbs.UD})
			dial.Type = verbs.RC
			c.end[passiveEnd] = nil
			c.begin()
			c.a = active.Connect(dial, "")
		},
		want: same("nobody listens", ""),
	}, {
		name: "no route to the address", alone: true,
		run:  func(c *connecting) { c.dial(netip.MustParseAddr("192.0.2.1")) },
		want: same("no route", ""),
	}, {
		name: "no host has the address", alone: true,
		run:  func(c *connecting) { c.dial(netip.MustParseAddr("10.0.0.252")) },
		want: same("unreachable", ""),
	}, {
		name: "the host runs no RDMA", alone: true, needsSoftPassive: true,
		run: func(c *connecting) { c.dial(c.addrs[passiveEnd]) },
		want: [...][2]string{
			none, {"unreachable", ""},
			none, {portClosed, ""},
		},
	}, {
		name: "every request is lost", needsLoss: true, alone: true,
		run: func(c *connecting) {
			active, passive := c.both()
			_, dial := passive.Listen(verbs.CMListen{})
			c.a = active.Dial(dial)
			c.dropPacketsTo(passiveEnd)
			c.begin()
			require.NoError(c.t, c.a.Connect(active.Param("")))
			c.end[passiveEnd] = nil
		},
		want: same("unreachable", ""),
	}, {
		name: "REP lost once", needsLoss: true,
		run: func(c *connecting) {
			c.request()
			restore := c.dropPacketsTo(activeEnd)
			c.begin()
			c.accept()
			c.pause()
			restore()
			c.watch(func() bool { return len(c.reports[activeEnd]) > 0 })
			c.establish()
			c.watch(func() bool { return len(c.reports[passiveEnd]) > 0 })
			c.ids = [2]int{}
		},
		want: same("accepted", "established"),
	}, {
		name: "every REP lost", needsLoss: true,
		run: func(c *connecting) {
			c.request()
			c.dropPacketsTo(activeEnd)
			c.begin()
			c.accept()
		},
		// A request that is repeated after the passive end has given up is a new one to it.
		want: same("unreachable", "rejected, 4 | unreachable | unreachable; connection request | unreachable; connection request; rejected, 4"),
	}, {
		name: "RTU lost once", needsLoss: true,
		run: func(c *connecting) {
			c.respond()
			restore := c.dropPacketsTo(passiveEnd)
			c.begin()
			c.establish()
			c.pause()
			restore()
			c.watch(func() bool { return len(c.reports[passiveEnd]) > 0 })
			c.ids = [2]int{}
		},
		want: same("", "established"),
	}, {
		name: "every RTU lost, and no packet comes", needsLoss: true,
		run: func(c *connecting) {
			c.respond()
			c.dropPacketsTo(passiveEnd)
			c.begin()
			c.establish()
		},
		want: [...][2]string{
			none, {"disconnected", "unreachable"},
			{"", "unreachable"}, {"disconnected", "unreachable"},
		},
	}, {
		name: "the active application does not call Establish",
		run: func(c *connecting) {
			c.begin()
			c.respond()
		},
		// Whose patience ends first, where both have the same.
		want: [...][2]string{
			none, {"rejected, 4", "unreachable"},
			{unanswered, "rejected, 4"}, {"rejected, 4 | " + unanswered, "unreachable | rejected, 4"},
		},
	}, {
		name: "the passive application does not call Accept",
		run: func(c *connecting) {
			c.begin()
			c.request()
		},
		want: [...][2]string{
			none, {"rejected, 3", unanswered},
			none, {"rejected, 3", unanswered},
		},
	}, {
		name: "both disconnect at once",
		run: func(c *connecting) {
			c.connect()
			c.begin()
			var wg sync.WaitGroup
			var errs [2]error
			for i, id := range []verbs.CMID{c.a, c.b} {
				wg.Go(func() { errs[i] = id.Disconnect() })
			}
			wg.Wait()
			c.possible(errs[0])
			c.possible(errs[1])
		},
		want: same("disconnected", "disconnected"),
	}, {
		name: "DREQ of the active end lost once", needsLoss: true,
		run: func(c *connecting) {
			c.connect()
			restore := c.dropPacketsTo(passiveEnd)
			c.begin()
			require.NoError(c.t, c.a.Disconnect())
			c.pause()
			restore()
		},
		want: same("disconnected", "disconnected"),
	}, {
		name: "DREP lost once", needsLoss: true,
		run: func(c *connecting) {
			c.connect()
			restore := c.dropPacketsTo(activeEnd)
			c.begin()
			require.NoError(c.t, c.a.Disconnect())
			c.pause()
			restore()
		},
		want: same("disconnected", "disconnected"),
	}, {
		name: "every DREP lost", needsLoss: true,
		run: func(c *connecting) {
			c.connect()
			c.dropPacketsTo(activeEnd)
			c.begin()
			require.NoError(c.t, c.a.Disconnect())
		},
		want: same("disconnected", "disconnected"),
	}, {
		name: "every DREQ lost", needsLoss: true,
		run: func(c *connecting) {
			c.connect()
			c.dropPacketsTo(passiveEnd)
			c.begin()
			require.NoError(c.t, c.a.Disconnect())
		},
		want: same("disconnected", ""),
	}, {
		name: "stale: every DREQ lost, and then the active end connects again with the same queue pair", needsLoss: true,
		run: func(c *connecting) {
			c.connect()
			restore := c.dropPacketsTo(passiveEnd)
			require.NoError(c.t, c.a.Disconnect())
			c.settled()
			c.end[activeEnd].Next(verbs.CMDisconnected)
			c.end[activeEnd].Next(verbs.CMTimewaitExit)
			require.NoError(c.t, c.a.Close())
			restore()
			c.begin()
			c.connectAgain()
			c.first = nil
		},
		want: same("rejected, 10", "disconnected"),
	}, {
		name: "stale: the active end connects again with a queue pair that is connected",
		run: func(c *connecting) {
			c.connect()
			c.begin()
			c.connectAgain()
			c.ids[activeEnd] = 2
		},
		want: [...][2]string{
			{bothRejectedAndDisconnected, "disconnected"}, {"rejected, 10 (second)", ""},
			{bothRejectedAndDisconnected, "disconnected"}, {"rejected, 10 (second)", ""},
		},
	}, {
		name: "active end killed after the request", killed: 1,
		run: func(c *connecting) {
			kill := c.activePeer("request")
			c.begin()
			kill()
			c.accept()
		},
		want: [...][2]string{
			{"", "rejected, 4 | rejected"}, {"", "rejected, 4"},
			{"", "unreachable"}, {"", portClosed},
		},
	}, {
		name: "active end killed after the response", killed: 1,
		run: func(c *connecting) {
			kill := c.activePeer("response")
			c.begin()
			kill()
		},
		want: [...][2]string{
			{"", "rejected, 28"}, {"", "rejected, 28"},
			{"", "unreachable"}, {"", portClosed},
		},
	}, {
		name: "active end killed when established", killed: 1,
		run: func(c *connecting) {
			kill := c.activePeer("established")
			c.end[passiveEnd].Next(verbs.CMEstablished)
			c.begin()
			kill()
		},
		want: [...][2]string{
			{"", "disconnected"}, {"", "disconnected"},
			{"", ""}, {"", ""},
		},
	}, {
		name: "the same, and the passive end disconnects", killed: 1,
		run: func(c *connecting) {
			kill := c.activePeer("established")
			c.end[passiveEnd].Next(verbs.CMEstablished)
			c.begin()
			kill()
			c.possible(c.b.Disconnect())
		},
		want: same("", "disconnected"),
	}, {
		name: "passive end killed after the request", killed: 2,
		run: func(c *connecting) {
			kill := c.passivePeer("request")
			c.begin()
			kill()
		},
		want: [...][2]string{
			{"rejected, 28", ""}, {"unreachable", ""},
			{"rejected, 28", ""}, {portClosed, ""},
		},
	}, {
		name: "passive end killed after the response", killed: 2,
		run: func(c *connecting) {
			kill := c.passivePeer("response")
			c.end[activeEnd].Next(verbs.CMConnectResponse)
			c.begin()
			kill()
			c.establish()
		},
		want: [...][2]string{
			{"disconnected | rejected, 28", ""}, {"", ""},
			{"disconnected | rejected, 28", ""}, {"", ""},
		},
	}, {
		name: "passive end killed when established", killed: 2,
		run: func(c *connecting) {
			kill := c.passivePeer("established")
			c.begin()
			kill()
		},
		want: [...][2]string{
			{"disconnected", ""}, {"", ""},
			{"disconnected", ""}, {"", ""},
		},
	}, {
		name: "the same, and the active end disconnects", killed: 2,
		run: func(c *connecting) {
			kill := c.passivePeer("established")
			c.begin()
			kill()
			c.possible(c.a.Disconnect())
		},
		want: same("disconnected", ""),
	},
}

// dial dials an address at which there is nobody.
func (c *connecting) dial(addr netip.Addr) {
	c.t.Helper()
	active := c.open(activeEnd)
	c.begin()
	id, err := active.CM.Dial(verbs.CMDial{Addr: netip.AddrPortFrom(addr, 7)})
	if err != nil {
		c.addReport(activeEnd, failureText(err))
		c.t.Log(err)
		c.ids[activeEnd] = 0
		return
	}
	// The next event is that the way is found, or that it is not.
	c.settled()
	e := <-active.Events()
	if e.Type == verbs.CMResolved {
		require.NoError(c.t, id.Connect(active.Param("")))
		return
	}
	c.note(activeEnd, e)
	c.ids[activeEnd] = 0
}

// connectAgain connects again with the queue pair of the connection.
func (c *connecting) connectAgain() {
	c.t.Helper()
	c.first = c.a
	active := c.end[activeEnd]
	addr := cmtest.SideOf(c.t, c.end[passiveEnd].Side.Device, true, false).GID.GID.Addr()
	c.a = active.Connect(verbs.CMDial{Addr: netip.AddrPortFrom(addr, c.a.RemoteAddr().Port())}, "")
}
