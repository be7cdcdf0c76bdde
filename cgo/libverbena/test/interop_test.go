//go:build linux

package test

import (
	"bufio"
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/internal/optional"
	"github.com/verbena-rdma/verbena/test/cmtest"
	"github.com/verbena-rdma/verbena/test/verbstest"
	"github.com/verbena-rdma/verbena/verbs"
)

// openDevice opens a device of this process on the loopback interface.
func openDevice(t *testing.T) verbs.Device {
	t.Helper()
	d, err := device.Open("soft-lo")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// sawPath returns a function that reports whether the queue pair has had a path.
func sawPath(qp verbs.QP, want verbs.Path) func() bool {
	done, saw := make(chan struct{}), false
	var watch sync.WaitGroup
	watch.Go(func() {
		for !saw {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
				saw = qp.(optional.CountersQP).Counters().Path == want
			}
		}
	})
	return func() bool {
		close(done)
		watch.Wait()
		return saw
	}
}

// rping in C and the same protocol on a Go program's device exchange data by shared memory, with
// either as the server.
func TestGoAndC(t *testing.T) {
	needProgram(t, "rping", "rdmacm-utils")
	needProgram(t, "stdbuf", "coreutils")
	const rounds, size = 500, 1000
	options := fmt.Sprintf("-V -d -S %d -C %d", size, rounds)
	rping := func(t *testing.T, args string) *child {
		p, err := start(t.Context(), plain.environment(t, "VERBENA_DEVICES=soft-lo"), strings.Fields("stdbuf -oL rping "+options+" "+args))
		require.NoError(t, err)
		t.Cleanup(p.stop)
		return p
	}
	t.Run("C serves", func(t *testing.T) {
		port := freePort(t)
		p := rping(t, "-s -a 127.0.0.1 -p "+port)
		for !strings.Contains(p.output.String(), "rdma_listen") && !p.ended() {
			time.Sleep(10 * time.Millisecond)
		}
		end := cmtest.NewRping(t, cmtest.SideOf(t, openDevice(t), true, false), size)
		shared := sawPath(end.QP, verbs.PathSharedMemory)
		end.Client(netip.MustParseAddrPort("127.0.0.1:"+port), rounds)
		assert.True(t, shared(), "the path was never shared memory")
		_ = p.Wait() // rping exits with an error when its client disconnects
	})
	t.Run("Go serves", func(t *testing.T) {
		end := cmtest.NewRping(t, cmtest.SideOf(t, openDevice(t), true, false), size)
		l, err := end.CM.Listen(verbs.CMListen{Addr: netip.AddrPortFrom(end.Side.GID.GID.Addr(), 0)})
		require.NoError(t, err)
		shared := sawPath(end.QP, verbs.PathSharedMemory)
		p := rping(t, fmt.Sprintf("-c -a %v -p %d", l.Addr().Addr(), l.Addr().Port()))
		assert.Equal(t, rounds, end.Serve(l))
		assert.True(t, shared(), "the path was never shared memory")
		require.NoError(t, p.Wait(), "%s", p.output.String())
	})
}

// A script in Python writes to the memory of a Go program, and the Go program to its. They tell
// each other their addresses by standard input and output.
func TestGoAndPython(t *testing.T) {
	if out, err := exec.Command(python, "-c", "import pyverbs.device").CombinedOutput(); err != nil {
		t.Skipf("pyverbs is missing (Debian package python3-pyverbs): %v\n%s", err, out)
	}
	side := cmtest.SideOf(t, openDevice(t), true, false)
	dev := side.Device
	// The first part is the peer's to write to, the second is what this program writes, and the
	// third receives messages.
	const half = 2048
	cq, err := dev.CreateCQ(verbs.CQInit{Capacity: 16})
	require.NoError(t, err)
	defer func() { require.NoError(t, cq.Close()) }()
	memory, err := syscall.Mmap(-1, 0, 3*half, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	defer func() { require.NoError(t, syscall.Munmap(memory)) }()
	mr, err := dev.DefaultPD().RegMR(memory, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	require.NoError(t, err)
	defer func() { require.NoError(t, mr.Close()) }()
	qp, err := dev.DefaultPD().CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
	require.NoError(t, err)
	defer func() { require.NoError(t, qp.Close()) }()

	cmd := exec.Command(python, filepath.Join("testdata", "peer.py"), "soft_lo")
	cmd.Env = plain.environment(t, "VERBENA_DEVICES=soft-lo")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }).Stop()
	out := bufio.NewScanner(pipe)
	next := func() string {
		require.True(t, out.Scan(), "the script ended: %v", out.Err())
		return out.Text()
	}
	var gid string
	var qpn, rkey uint32
	var address uint64
	_, err = fmt.Sscan(next(), &gid, &qpn, &address, &rkey)
	require.NoError(t, err)
	_, err = fmt.Fprintln(in, groups(side.GID.GID), qp.Num(), mr.Addr(), mr.RKey())
	require.NoError(t, err)
	peer, err := netip.ParseAddr(gid)
	require.NoError(t, err)
	connect(t, qp, verbs.GIDFromAddr(peer), qpn)
	sge := func(offset, n int) []verbs.SGE {
		return []verbs.SGE{{Addr: mr.Addr() + uint64(offset), Length: uint32(n), LKey: mr.LKey()}}
	}
	_, err = qp.PostRecv([]verbs.RecvWR{{SGL: sge(2*half, 64)}})
	require.NoError(t, err)
	require.Equal(t, "ready", next())
	_, err = fmt.Fprintln(in)
	require.NoError(t, err)

	copy(memory[half:2*half], bytes.Repeat([]byte("from go to python, "), half))
	_, err = qp.PostSend([]verbs.SendWR{
		{Op: verbs.OpWrite, SGL: sge(half, half), RemoteAddr: address + half, RKey: rkey},
		{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: sge(half, 8)},
	})
	require.NoError(t, err)
	for got := 0; got < 2; {
		var wc [2]verbs.WC
		n, err := cq.Poll(wc[:])
		require.NoError(t, err)
		for _, c := range wc[:n] {
			require.Equal(t, verbs.StatusSuccess, c.Status)
		}
		got += n
	}
	// The first packets go by UDP, until the devices have found each other.
	assert.Eventually(t, func() bool {
		_, err := cq.Poll(nil)
		return err == nil && qp.(optional.CountersQP).Counters().Path == verbs.PathSharedMemory
	}, time.Minute, time.Millisecond)
	require.Equal(t, "done", next())
	assert.Equal(t, string(bytes.ToUpper(memory[half:2*half])), string(memory[:half]))
	_, err = fmt.Fprintln(in)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
}

// groups prints a GID as pyverbs reads it.
func groups(gid verbs.GID) string {
	var list []string
	for pair := range slices.Chunk(gid[:], 2) {
		list = append(list, fmt.Sprintf("%04x", pair))
	}
	return strings.Join(list, ":")
}

// connect moves a queue pair to Ready to Send.
func connect(t *testing.T, qp verbs.QP, gid verbs.GID, qpn uint32) {
	t.Helper()
	const all = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	verbstest.ToRTS(t, qp, verbs.RC, verbs.QPAttr{
		Port: 1, Access: all, PathMTU: 1024, DestQPN: qpn, MaxDestReadAtomic: 1, MinRNRTimer: 12,
		Address: verbs.AddressAttr{DGID: gid, Port: 1},
		Timeout: 18, RetryCount: 7, RNRRetry: 7, MaxInitReadAtomic: 1, // 1 s: the peer may have no processor for some time
	})
}
