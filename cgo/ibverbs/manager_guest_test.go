//go:build linux && cgo && verbs

package ibverbs_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/cmtest"
	"github.com/verbena-rdma/verbena/test/soak"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestGuestConnectionManager runs the tests of the seam with the kernel's connection
// manager at one end, or at both. make test has each pair of devices with one family.
func TestGuestConnectionManager(t *testing.T) {
	adapter, software := openAdapter(t), openSoft(t, soft.Faults{})
	all := !testing.Short()
	side := func(dev verbs.Device, family string) cmtest.Side {
		return cmtest.SideOf(t, dev, family == "IPv4", dev == adapter)
	}
	for i, c := range []struct {
		name            string
		active, passive verbs.Device
	}{
		{"rxe to rxe", adapter, adapter},
		{"rxe to soft", adapter, software},
		{"soft to rxe", software, adapter},
	} {
		for j, family := range families {
			if i%2 != j && !all {
				continue
			}
			t.Run(fmt.Sprintf("%s, %s", c.name, family), func(t *testing.T) {
				t.Parallel()
				cmtest.Run(t, side(c.active, family), side(c.passive, family), !all)
			})
		}
	}
}

// A link-local address without a zone is one of the device's interface.
func TestGuestLinkLocal(t *testing.T) {
	adapter := openAdapter(t)
	table, err := adapter.GIDs(1)
	require.NoError(t, err)
	require.True(t, table[0].GID.Addr().IsLinkLocalUnicast(), "%v", table)
	s := cmtest.Side{Device: adapter, GID: table[0], Kernel: true}
	active, passive := cmtest.NewEnd(t, s, verbs.RC), cmtest.NewEnd(t, s, verbs.RC)
	cmtest.Establish(active, passive)
	active.Renew()
	passive.Renew()
	l, err := passive.CM.Listen(verbs.CMListen{Addr: netip.AddrPortFrom(table[0].GID.Addr(), 0)})
	require.NoError(t, err)
	active.Connect(verbs.CMDial{Addr: l.Addr(), Local: netip.AddrPortFrom(table[0].GID.Addr(), 4711)}, "")
	assert.EqualValues(t, 4711, passive.Next(verbs.CMConnectRequest).ID.RemoteAddr().Port())
}

// Connections that come and go leave nothing behind, nor do managers and listeners.
func TestGuestSoakConnections(t *testing.T) {
	adapter := openAdapter(t)
	s := cmtest.SideOf(t, adapter, true, true)
	active, passive := cmtest.NewEnd(t, s, verbs.RC), cmtest.NewEnd(t, s, verbs.RC)
	listener, dial := passive.Listen(verbs.CMListen{})
	cycle := func() {
		a := active.Connect(dial, "")
		b := passive.Next(verbs.CMConnectRequest).ID
		passive.Accept(b, "")
		active.Next(verbs.CMConnectResponse)
		active.Move(a, verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend)
		require.NoError(t, a.Establish())
		passive.Next(verbs.CMEstablished)
		require.NoError(t, a.Disconnect())
		active.Next(verbs.CMDisconnected)
		passive.Next(verbs.CMDisconnected)
		for _, id := range []verbs.CMID{a, b} {
			require.NoError(t, id.Close())
		}
		active.Renew()
		passive.Renew()

		cm, err := adapter.(verbs.CMDevice).OpenCM(func(verbs.CMEvent) {})
		require.NoError(t, err)
		_, err = cm.Listen(verbs.CMListen{Type: verbs.UD})
		require.NoError(t, err)
		_, err = cm.Dial(dial)
		require.NoError(t, err)
		require.NoError(t, cm.Close())
	}
	cycle()
	files := openFiles(t)
	begin := time.Now()
	rounds := soak.Rounds(t, 20, 10_000)
	for range rounds {
		cycle()
	}
	t.Logf("%v for each of %d connections", time.Since(begin)/time.Duration(rounds), rounds)
	assert.Equal(t, files, openFiles(t), "files")
	require.NoError(t, listener.Close())
}

// rping, at either end, with queue pairs of our own on rxe. make test has each family
// with one of the sizes, and an rping with a queue pair of its own (-q) with IPv4.
func TestGuestRping(t *testing.T) {
	adapter := openAdapter(t)
	for i, family := range families {
		for j, size := range []int{65_535, 26} {
			if i != j && testing.Short() {
				continue
			}
			t.Run(fmt.Sprintf("%s, %d bytes", family, size), func(t *testing.T) {
				s := cmtest.SideOf(t, adapter, family == "IPv4", true)
				runRping(t, s, s.GID.GID.Addr(), size, 5)
			})
		}
		if i > 0 && testing.Short() {
			continue
		}
		t.Run(family+", own queue pair", func(t *testing.T) {
			s := cmtest.SideOf(t, adapter, family == "IPv4", true)
			runRping(t, s, s.GID.GID.Addr(), 26, 5, "-q")
		})
	}
}

// A device of its own process: librdmacm keeps the devices that it has met open, and
// rxe is not deleted before it has been closed.
func TestGuestOtherDevice(t *testing.T) {
	requireGuest(t)
	if testing.Short() {
		t.Skip("make rig runs it: to add an adapter and delete it again takes seconds")
	}
	if os.Getenv("VERBENA_OTHER_DEVICE") == "" {
		run := func(args ...string) {
			out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
			require.NoError(t, err, "%v: %s", args, out)
		}
		run("/bin/ip", "link", "add", "other0", "type", "dummy")
		defer run("/bin/ip", "link", "delete", "other0") // and rxe1 with it
		run("/bin/ip", "addr", "add", "10.7.0.1/24", "dev", "other0")
		run("/bin/ip", "link", "set", "other0", "up")
		run("rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "other0")
		again := exec.Command(os.Args[0], "-test.v", "-test.run", "^"+t.Name()+"$")
		again.Env = append(os.Environ(), "VERBENA_OTHER_DEVICE=1")
		out, err := again.CombinedOutput()
		require.NoError(t, err, "%s", out)
		t.Logf("%s", out)
		return
	}
	other, err := ibverbs.Driver{}.Open("rxe1")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	here := cmtest.NewEnd(t, cmtest.SideOf(t, openAdapter(t), true, true), verbs.RC)
	there := cmtest.NewEnd(t, cmtest.SideOf(t, other, true, true), verbs.RC)

	// The way leads over the other device.
	_, err = here.CM.Dial(verbs.CMDial{Addr: netip.MustParseAddrPort("10.7.0.1:7")})
	require.NoError(t, err)
	failed := here.Failed(verbs.CMStepResolve, verbs.ErrNoRoute)
	assert.ErrorContains(t, failed, `"rxe1"`)
	assert.ErrorContains(t, failed, `"rxe0"`)
	t.Log(failed)
	_, err = here.CM.Dial(verbs.CMDial{Addr: netip.MustParseAddrPort("192.0.2.1:7")})
	require.ErrorIs(t, err, verbs.ErrNoRoute)
	t.Log(err)

	// So does a request to a listener at all addresses.
	_, dial := here.Listen(verbs.CMListen{})
	dial.Addr = netip.AddrPortFrom(netip.MustParseAddr("10.7.0.1"), dial.Addr.Port())
	there.Connect(dial, "")
	there.Failed(verbs.CMStepConnect, verbs.ErrRejected)
	there.Next(verbs.CMTimewaitExit)
	here.Quiet()
	_, err = there.CM.Listen(verbs.CMListen{Addr: netip.AddrPortFrom(netip.IPv6Unspecified(), dial.Addr.Port())})
	require.ErrorIs(t, err, verbs.ErrInUse)
	t.Log(err)
}

// The machine is without librdmacm; TestRig sees to that.
func TestBrokenNoManager(t *testing.T) {
	_, err := openAdapter(t).(verbs.CMDevice).OpenCM(func(verbs.CMEvent) {})
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	assert.ErrorContains(t, err, "librdmacm1")
	t.Log(err)
}

// Until the manager is closed, the device is not.
func TestGuestManagerInUse(t *testing.T) {
	requireGuest(t)
	d, err := ibverbs.Driver{}.Open("rxe0")
	require.NoError(t, err)
	_, err = d.(verbs.CMDevice).OpenCM(nil)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	cm, err := d.(verbs.CMDevice).OpenCM(func(verbs.CMEvent) {})
	require.NoError(t, err)
	require.ErrorIs(t, d.Close(), verbs.ErrInUse)
	require.NoError(t, cm.Close())
	require.NoError(t, cm.Close())
	require.NoError(t, d.Close())
	_, err = d.(verbs.CMDevice).OpenCM(func(verbs.CMEvent) {})
	require.ErrorIs(t, err, verbs.ErrClosed)
}

// runRping connects the side with rping(1), which runs on an adapter with that address and with
// these flags, once with either as the server.
func runRping(t *testing.T, s cmtest.Side, rping netip.Addr, size, rounds int, flags ...string) {
	const port = 7174
	start := func(t *testing.T, args ...string) (*exec.Cmd, *bytes.Buffer) {
		args = append(args, flags...)
		cmd := exec.Command("rping", append(args, "-V", "-d", "-p", fmt.Sprint(port), "-S", fmt.Sprint(size), "-C", fmt.Sprint(rounds))...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // has no effect unless the test has failed: rping has ended
		return cmd, &out
	}
	at := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, port) }
	t.Run("rping serves", func(t *testing.T) {
		cmd, out := start(t, "-s", "-a", rping.String())
		cmtest.NewRping(t, s, size).Client(at(rping), rounds)
		_ = cmd.Wait() // rping exits with an error when the peer disconnects
		t.Logf("%s", out)
	})
	t.Run("rping asks", func(t *testing.T) {
		end := cmtest.NewRping(t, s, size)
		own := s.GID.GID.Addr()
		l, err := end.CM.Listen(verbs.CMListen{Addr: at(own)})
		require.NoError(t, err)
		cmd, out := start(t, "-c", "-a", own.String())
		require.Equal(t, rounds, end.Serve(l))
		err = cmd.Wait()
		// At its end rping waits for events in one thread and closes their channel in another.
		if strings.Contains(out.String(), "rdma_get_cm_event: Bad file descriptor") {
			require.Equal(t, 255, cmd.ProcessState.ExitCode(), "%s", out)
			return
		}
		require.NoError(t, err, "%s", out)
	})
}
