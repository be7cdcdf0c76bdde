//go:build linux && cgo && verbs

package rdma_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft"
	guest "github.com/verbena-rdma/verbena/test/rig"
	"github.com/verbena-rdma/verbena/test/soak"
	"github.com/verbena-rdma/verbena/verbs"
)

func init() {
	clientDevices["rxe"] = openAdapter
	clientDevices["far soft"] = openFarSoft
	clientDevices["one of several soft"] = openOneOfSeveral
}

// drivers are the devices of the guest, by their names in clientDevices.
var drivers = []struct {
	name string
	open func(*testing.T) verbs.Device
}{{"rxe", openAdapter}, {"far soft", openFarSoft}}

// ownAddress is the address of one of several software devices at the other end of the
// cable of rxe0: rxe sends to the standard port only, so that each needs its own.
func ownAddress(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(100 + i)}), 4791)
}

// openOneOfSeveral opens a software device at one of the unused addresses.
func openOneOfSeveral(t *testing.T) verbs.Device {
	t.Helper()
	requireGuest(t)
	var d *soft.Device
	require.NoError(t, guest.InNamespace("s", func() (err error) {
		for i := range 2 * places {
			if d, err = soft.Open(soft.Config{Address: ownAddress(i)}); err == nil {
				break
			}
		}
		return err
	}))
	return closed(t, d)
}

// As TestSoakServerOutlivesItsClients, on rxe, and with both drivers. Short: on rxe.
func TestGuestSoakServerOutlivesItsClients(t *testing.T) {
	requireGuest(t)
	for _, on := range []struct {
		server  int
		clients string
	}{{0, "rxe"}, {0, "one of several soft"}, {1, "rxe"}} {
		server := drivers[on.server]
		if testing.Short() && (on.server != 0 || on.clients != "rxe") {
			continue
		}
		t.Run(server.name+", clients on "+on.clients, func(t *testing.T) {
			dev := server.open(t)
			if on.clients != "rxe" {
				addresses(t, "add")
				defer addresses(t, "del")
			}
			testServerOutlives(t, dev, on.clients, soak.Rounds(t, 5, 96), soak.Duration(t, 5*time.Second, 3*time.Minute))
		})
	}
}

// addresses adds or deletes those of several software devices.
func addresses(t *testing.T, do string) {
	t.Helper()
	for i := range 2 * places {
		out, err := exec.Command("ip", "-n", "s", "addr", do, ownAddress(i).Addr().String()+"/24", "dev", "v1").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// As TestKeepaliveNoticesTheDead, with the kernel's driver at one end, or both. Short:
// each device pair with one of the idle cases, and one with the default interval.
func TestGuestKeepaliveNoticesTheDead(t *testing.T) {
	requireGuest(t)
	for i, on := range []struct{ own, peer int }{{0, 0}, {0, 1}, {1, 0}} {
		own, peer := drivers[on.own], drivers[on.peer]
		for j, how := range idleCases {
			for _, keepalive := range []time.Duration{20 * time.Millisecond, 0} {
				if chosen := i == j && (keepalive > 0 || i == 1); testing.Short() && !chosen {
					continue
				}
				t.Run(fmt.Sprintf("%s, peer on %s/%s/%v", own.name, peer.name, how.name, keepalive), func(t *testing.T) {
					testPeerDiesIdle(t, own.open, peer.name, syscall.SIGKILL, keepalive, how)
				})
			}
		}
	}
}

// As TestKeepaliveOfTheLiving.
func TestGuestKeepaliveOfTheLiving(t *testing.T) {
	requireGuest(t)
	for _, on := range devicePairs {
		t.Run(on.name, func(t *testing.T) {
			idleAndAlive(t, on.a(t), on.b(t), func(r *rig) {
				start := time.Now()
				r.until("keepalives have been said", func() bool { return time.Since(start) > 300*time.Millisecond })
			})
		})
	}
}

// As TestDisconnect and TestDisconnectWhileAsleep. rxe does not say that memory was written:
// its end looks for a disconnect notice at every keepalive. Short: each device pair with one of the
// three ways.
func TestGuestDisconnect(t *testing.T) {
	requireGuest(t)
	for i, on := range devicePairs[:3] {
		for j, stop := range []bool{false, true} {
			if testing.Short() && i != j {
				continue
			}
			t.Run(fmt.Sprintf("%s, stop %v", on.name, stop), func(t *testing.T) { testDisconnect(t, on.a(t), on.b(t), stop, true) })
		}
		if testing.Short() && i != 2 {
			continue
		}
		t.Run(on.name+", asleep", func(t *testing.T) { testDisconnectWhileAsleep(t, on.a(t), on.b(t)) })
	}
}
