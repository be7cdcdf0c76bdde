//go:build linux && cgo && verbs

package ibverbs_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/cmtest"
	"github.com/verbena-rdma/verbena/test/rig"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestGuestFailures makes connections fail in every way, checks what each end is told, and
// prints a table. docs/connecting-failures.md has a summary of it. Most of the time, all cases
// wait for time-outs, the longest of which are the kernel's, 98 s.
//
// Short: not at all.
func TestGuestFailures(t *testing.T) {
	requireGuest(t)
	if peer := os.Getenv(peerVariable); peer != "" {
		runPeer(t, peer)
		return
	}
	if testing.Short() {
		t.Skip("make rig and make failures run it: it takes two minutes")
	}
	adapter := openAdapter(t)
	addresses := addressesFor(t, 2*len(failureCases)*len(devicePairs))
	result := make([][len(devicePairs)]reports, len(failureCases))
	slots := make(chan struct{}, 4) // for cases that do not merely wait
	var running sync.WaitGroup
	for i, w := range failureCases {
		for j, p := range devicePairs {
			if !w.possible(p) {
				continue
			}
			own := [2]netip.Addr{<-addresses, <-addresses}
			running.Go(func() {
				// Not t.Parallel, which runs as many at a time as there are processors.
				t.Run(fmt.Sprintf("%s/%s-%s", w.name, p.active, p.passive), func(t *testing.T) {
					c := &connecting{t: t, devicePair: p, adapter: adapter, addrs: own, ids: [2]int{1, 1}}
					slots <- struct{}{}
					c.settled = sync.OnceFunc(func() { <-slots })
					defer c.settled()
					w.run(c)
					c.finish(w.want[j])
					result[i][j] = c.reports
				})
			})
		}
	}
	running.Wait()
	printTable(result)
}

// devicePair says which devices the active and the passive end have.
type devicePair struct{ active, passive string }

var devicePairs = [...]devicePair{{"rxe", "rxe"}, {"rxe", "soft"}, {"soft", "rxe"}, {"soft", "soft"}}

const (
	activeEnd = iota
	passiveEnd
)

// reports has the events of the active and of the passive end.
type reports [2][]report

// report is an event, and when it came.
type report struct {
	text  string
	after time.Duration
}

// addressesFor gives the second host addresses, so that each software device has UDP
// port 4791 of one, and its own faults.
func addressesFor(t *testing.T, n int) <-chan netip.Addr {
	list := make(chan netip.Addr, n)
	var add, remove strings.Builder
	addr := netip.MustParseAddr("10.0.0.10")
	require.LessOrEqual(t, n, 240)
	for range n {
		fmt.Fprintf(&add, "addr add %v/24 dev v1\n", addr)
		fmt.Fprintf(&remove, "addr del %v/24 dev v1\n", addr)
		list <- addr
		addr = addr.Next()
	}
	// Whoever has a rule for this table sends to a host that is not there.
	add.WriteString("route add default via 10.0.0.251 dev v1 table 250\nneigh add 10.0.0.251 lladdr 02:00:00:00:00:99 dev v1 nud permanent\n")
	remove.WriteString("neigh del 10.0.0.251 dev v1\nroute flush table 250\n")
	batch := func(script string) {
		cmd := exec.Command("/bin/ip", "-n", "s", "-batch", "-")
		cmd.Stdin = strings.NewReader(script)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	batch(add.String())
	t.Cleanup(func() { batch(remove.String()) })
	return list
}

// openSoftAt opens a software device at an address of the second host.
func openSoftAt(t testing.TB, addr netip.Addr) *soft.Device {
	t.Helper()
	var d *soft.Device
	require.NoError(t, rig.InNamespace("s", func() (err error) {
		d, err = soft.Open(soft.Config{Address: netip.AddrPortFrom(addr, 4791)})
		return err
	}))
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// connecting is one attempt to connect that fails, or a connection that ends.
type connecting struct {
	t *testing.T
	devicePair
	adapter verbs.Device
	addrs   [2]netip.Addr
	soft    [2]*soft.Device
	end     [2]*cmtest.End // nil: the end is another process, or there is none
	ids     [2]int         // how many IDs the end has, each of which has an end
	exits   [2]int         // and how many have reached it
	a, b    verbs.CMID     // the active and the passive one
	first   verbs.CMID     // the active one before a second Connect
	began   time.Time      // when it was made to fail
	reports reports
	settled func() // says that it merely waits from here on
}

func (c *connecting) device(i int) string { return [2]string{c.active, c.passive}[i] }

// open makes an end in this process.
func (c *connecting) open(i int) *cmtest.End {
	c.t.Helper()
	dev := c.adapter
	if c.device(i) == "soft" {
		c.soft[i] = openSoftAt(c.t, c.addrs[i])
		dev = c.soft[i]
	}
	c.end[i] = cmtest.NewEnd(c.t, cmtest.SideOf(c.t, dev, true, c.device(i) == "rxe"), verbs.RC)
	return c.end[i]
}

func (c *connecting) both() (active, passive *cmtest.End) {
	c.t.Helper()
	return c.open(activeEnd), c.open(passiveEnd)
}

// request connects as far as the passive end's request.
func (c *connecting) request() {
	c.t.Helper()
	active, passive := c.both()
	_, dial := passive.Listen(verbs.CMListen{})
	c.a = active.Connect(dial, "")
	c.b = passive.Next(verbs.CMConnectRequest).ID
}

// respond connects as far as the active end's response.
func (c *connecting) respond() {
	c.t.Helper()
	c.request()
	c.accept()
	c.end[activeEnd].Next(verbs.CMConnectResponse)
}

func (c *connecting) connect() {
	c.t.Helper()
	c.respond()
	c.establish()
	c.end[passiveEnd].Next(verbs.CMEstablished)
}

// modify moves the queue pair of an end towards RTS; false: the connection is over.
func (c *connecting) modify(i int, id verbs.CMID) bool {
	c.t.Helper()
	for _, state := range []verbs.QPState{verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend} {
		attr, mask, err := id.Attr(state)
		if err != nil {
			require.ErrorIs(c.t, err, verbs.ErrState)
			return false
		}
		require.NoError(c.t, c.end[i].QP.Modify(attr, mask))
	}
	return true
}

// accept accepts the request, unless the peer has given up.
func (c *connecting) accept() {
	c.t.Helper()
	if c.modify(passiveEnd, c.b) {
		c.possible(c.b.Accept(c.end[passiveEnd].Param("")))
	}
}

func (c *connecting) establish() {
	c.t.Helper()
	if c.modify(activeEnd, c.a) {
		c.possible(c.a.Establish())
	}
}

// possible checks the error of a call on a connection that may just have ended.
func (c *connecting) possible(err error) {
	c.t.Helper()
	if err != nil {
		require.ErrorIs(c.t, err, verbs.ErrState)
	}
}

// begin begins the time that the table shows.
func (c *connecting) begin() { c.began = time.Now() }

// dropPacketsTo drops all packets to an end, until restore is called.
func (c *connecting) dropPacketsTo(to int) (restore func()) {
	c.t.Helper()
	if d := c.soft[to]; d != nil {
		require.NoError(c.t, d.SetFaults(soft.Faults{Loss: 1}))
		return func() { require.NoError(c.t, d.SetFaults(soft.Faults{})) }
	}
	rule := func(what string) {
		out, err := exec.Command("/bin/ip", "-n", "s", "rule", what, "from", c.addrs[1-to].String(), "lookup", "250").CombinedOutput()
		require.NoError(c.t, err, "%s", out)
	}
	rule("add")
	restore = sync.OnceFunc(func() { rule("del") })
	c.t.Cleanup(restore)
	return restore
}

// pause is in which a message that was just sent is lost. If the machine is so busy that
// it is not, nothing else happens.
func (c *connecting) pause() { time.Sleep(300 * time.Millisecond) }

// note notes an event of an end.
func (c *connecting) note(i int, e verbs.CMEvent) {
	text := ""
	switch e.Type {
	case verbs.CMTimewaitExit:
		c.exits[i]++
		return
	case verbs.CMConnectResponse:
		text = "accepted"
	case verbs.CMFailed:
		text = failureText(e.Err)
		c.t.Logf("the %s end: %v", [2]string{"active", "passive"}[i], e.Err)
	default:
		text = e.Type.String()
	}
	if c.first != nil && i == activeEnd {
		text += map[bool]string{true: " (first)", false: " (second)"}[e.ID == c.first]
	}
	c.addReport(i, text)
}

func (c *connecting) addReport(i int, text string) {
	c.reports[i] = append(c.reports[i], report{text, time.Since(c.began)})
}

// failureText says in short what an error tells a program.
func failureText(err error) string {
	var failed *verbs.CMError
	if !errors.As(err, &failed) {
		return err.Error()
	}
	switch {
	case errors.Is(err, verbs.ErrNotListening) && errors.Is(err, syscall.ECONNREFUSED):
		return portClosed
	case errors.Is(err, verbs.ErrNotListening):
		return "nobody listens"
	case errors.Is(err, verbs.ErrRejected) && failed.Reason == 0:
		return "rejected"
	case errors.Is(err, verbs.ErrRejected):
		return fmt.Sprintf("rejected, %d", failed.Reason)
	case errors.Is(err, verbs.ErrNoRoute):
		return "no route"
	case !errors.Is(err, verbs.ErrUnreachable):
		return err.Error()
	case strings.Contains(err.Error(), "no response from the application"):
		return unanswered
	}
	return "unreachable"
}

// window is for how long nothing has to come where an end is told nothing: longer than
// the kernel's time-outs.
const window = 105 * time.Second

// watch notes events until done.
func (c *connecting) watch(done func() bool) {
	c.t.Helper()
	var events [2]<-chan verbs.CMEvent
	for i, e := range c.end {
		if e != nil {
			events[i] = e.Events()
		}
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	end := time.Now().Add(patience)
	for !done() {
		select {
		case e := <-events[activeEnd]:
			c.note(activeEnd, e)
		case e := <-events[passiveEnd]:
			c.note(passiveEnd, e)
		case <-tick.C:
			c.settled()
			require.True(c.t, time.Now().Before(end), "after %v: %v", patience, c.reports)
		}
	}
}

// finish waits until both ends have been told everything, and compares it with what is
// expected: for each end, events separated by semicolons, with alternatives in order
// separated by bars.
func (c *connecting) finish(want [2]string) {
	c.t.Helper()
	begin := time.Now()
	c.watch(func() bool {
		over := time.Since(begin) > window
		for i, e := range c.end {
			if e != nil && c.exits[i] < c.ids[i] && (!over || len(c.reports[i]) == 0 && want[i] != "") {
				return false
			}
		}
		return true
	})
	for i, list := range c.reports {
		var texts []string
		for _, n := range list {
			texts = append(texts, n.text)
		}
		got := strings.Join(texts, "; ")
		assert.True(c.t, slices.Contains(strings.Split(want[i], " | "), got), "the %s end is told %q, and should be %q", [2]string{"active", "passive"}[i], got, want[i])
	}
}

// printTable prints the table as Markdown, between two lines by which TestRigFailures
// finds it.
func printTable(result [][len(devicePairs)]reports) {
	var b strings.Builder
	b.WriteString("| what happens | told to | rxe × rxe | rxe × soft | soft × rxe | soft × soft |\n|---|---|---|---|---|---|\n")
	for i, w := range failureCases {
		what := w.name
		for end, name := range []string{"active", "passive"} {
			if w.killed == end+1 || w.alone && end == passiveEnd {
				continue
			}
			fmt.Fprintf(&b, "| %s | %s |", what, name)
			for j, p := range devicePairs {
				fmt.Fprintf(&b, " %s |", cell(&w, p, result[i][j][end]))
			}
			b.WriteString("\n")
			what = ""
		}
	}
	fmt.Printf("%s\n%s%s\n", tableBegin, b.String(), tableEnd)
}

const tableBegin, tableEnd = "TABLE", "END OF TABLE"

func cell(w *failureCase, p devicePair, list []report) string {
	switch {
	case !w.possible(p):
		return "–"
	case len(list) == 0:
		return "nothing"
	}
	var texts []string
	for _, n := range list {
		texts = append(texts, n.text+": "+seconds(n.after))
	}
	return strings.Join(texts, "; ")
}

func seconds(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}
