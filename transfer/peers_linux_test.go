package transfer

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/test/footprint"
	"github.com/verbena-rdma/verbena/verbs"
)

// usage is what a process has.
type usage struct {
	footprint.Footprint
	shared      uint64 // mapped, in bytes
	goroutines  int
	descriptors int
}

func measure(t *testing.T) (u usage) {
	u.Footprint, u.goroutines = footprint.Measure(), runtime.NumGoroutine()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	u.descriptors = len(fds)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		var perm string
		_, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &perm)
		require.NoError(t, err)
		if strings.HasSuffix(perm, "s") {
			u.shared += to - from
		}
	}
	return u
}

// peerOf has this process be the other end of TestIdlePeers: it dials that address, or is dialled if it is empty.
const peerOf = "VERBENA_PEER_OF"

// openForPeers returns what closes all of the agent: nothing else refers to it, so that its memory is free then.
func openForPeers(t *testing.T) (a *Agent, end func()) {
	dev, err := device.Open("soft-lo")
	require.NoError(t, err)
	a, err = Open(Config{Devices: []verbs.Device{dev}, Listen: "127.0.0.1:0", MaxConnections: 2000})
	require.NoError(t, err)
	_, err = a.Register("blocks", make([]byte, 4096), mmap.RemoteRead)
	require.NoError(t, err)
	return a, func() {
		require.NoError(t, a.Close())
		require.NoError(t, dev.Close())
	}
}

// dialAnew closes peers, dials so many, and looks up what each publishes.
func dialAnew(t *testing.T, a *Agent, addr string, peers []*Peer, n int) []*Peer {
	for _, p := range peers {
		p.Close()
	}
	peers = nil
	for range n {
		p, err := a.Dial(t.Context(), addr)
		require.NoError(t, err)
		_, err = p.Segment(t.Context(), "blocks")
		require.NoError(t, err)
		peers = append(peers, p)
	}
	return peers
}

// otherEnd says where it can be dialled. Told a number, it dials that many peers, in place of those that it has.
func otherEnd(t *testing.T, addr string) {
	a, end := openForPeers(t)
	defer end()
	fmt.Println(a.Addrs()[0])
	var peers []*Peer
	for n := 0; ; {
		if _, err := fmt.Scan(&n); err != nil {
			return
		}
		peers = dialAnew(t, a, addr, peers, n)
		fmt.Println("dialled")
	}
}

// peersIn starts a process with the other ends of an agent. change has the agent have so many peers, in place of those
// that it has.
func peersIn(t *testing.T, a *Agent, dials bool) (change func(n int), end func()) {
	child := exec.Command(os.Args[0], "-test.run", "^TestIdlePeers$")
	addr := ""
	if !dials {
		addr = a.Addrs()[0].String()
	}
	child.Env, child.Stderr = append(os.Environ(), peerOf+"="+addr), os.Stderr
	in, err := child.StdinPipe()
	require.NoError(t, err)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	theirs := lines.Text()
	var peers []*Peer
	change = func(n int) {
		if dials {
			peers = dialAnew(t, a, theirs, peers, n)
		} else {
			fmt.Fprintln(in, n)
			require.True(t, lines.Scan())
			require.Equal(t, "dialled", lines.Text())
		}
		await(t, func() bool { return a.ends() == n })
	}
	return change, func() {
		_ = in.Close()
		for lines.Scan() {
		}
		require.NoError(t, child.Wait())
	}
}

// ends is how many peers an agent has, of either kind.
func (a *Agent) ends() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.incoming) - a.absent.Len() + len(a.peers)
}

// await waits on this goroutine, since goroutines are counted.
func await(t *testing.T, is func() bool) {
	for until := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(until))
	}
}

// What an agent has for idle peers is bounded for each, and returns when they go; all returns when agent and device are
// closed. With -v, it is printed.
func TestIdlePeers(t *testing.T) {
	if addr, set := os.LookupEnv(peerOf); set {
		otherEnd(t, addr)
		return
	}
	steps := []int{10, 100, 1000}
	if testing.Short() || raceEnabled {
		steps = steps[:2]
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\npeers\t\theap\tof each\tresident, of each\tshared memory\tgoroutines\tdescriptors\t\n")
	for _, dials := range []bool{false, true} {
		t.Run(map[bool]string{false: "that dialled", true: "dialled"}[dials], func(t *testing.T) {
			idlePeers(t, dials, steps[:1], io.Discard) // from then on there is what a program has once
			before := measure(t)
			idlePeers(t, dials, steps, w)
			after := settled(t, before, 512<<10)
			after.row(w, before, 0, "closed")
		})
	}
	require.NoError(t, w.Flush())
	t.Log(table.String())
}

// row prints by how much u is more than base.
func (u usage) row(w io.Writer, base usage, n int, what string) {
	heap, resident := u.Grown(base.Footprint, max(n, 1))
	fmt.Fprintf(w, "%d\t%s\t%d\t%.0f\t%.0f\t%d\t%d\t%d\t\n", n, what, int(u.Heap-base.Heap), heap, resident, int(u.shared-base.shared), u.goroutines-base.goroutines, u.descriptors-base.descriptors)
}

// idlePeers has an agent have growing numbers of peers, and prints what they cost.
func idlePeers(t *testing.T, dials bool, steps []int, w io.Writer) {
	a, end := openForPeers(t)
	defer end()
	change, stop := peersIn(t, a, dials)
	defer stop()
	change(10)
	change(0)
	base := measure(t)
	for _, n := range steps {
		change(n)
		u := settled(t, base, 32<<10*n)
		u.row(w, base, n, map[bool]string{false: "that dialled", true: "dialled"}[dials])
	}
	change(0)
	n := steps[len(steps)-1]
	u := settled(t, base, 512<<10+1<<11*n) // until the connection manager forgets them
	u.row(w, base, n, "gone")
}

// settled waits until there is no more than before, but for so much heap: goroutines that end, and timers, refer to
// agents for a while.
func settled(t *testing.T, before usage, heap int) (u usage) {
	await(t, func() bool {
		u = measure(t)
		return u.goroutines <= before.goroutines && u.descriptors <= before.descriptors && u.shared <= before.shared && int(u.Heap-before.Heap) < heap
	})
	return u
}
