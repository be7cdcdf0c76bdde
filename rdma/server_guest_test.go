//go:build linux && cgo && verbs

package rdma_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/soak"
	"github.com/verbena-rdma/verbena/verbs"
)

func init() {
	clientDevices["rxe"] = openAdapter
	clientDevices["far soft"] = openFarSoft
}

// drivers are the devices of the guest, by their names in clientDevices.
var drivers = []struct {
	name string
	open func(*testing.T) verbs.Device
}{{"rxe", openAdapter}, {"far soft", openFarSoft}}

// As TestSoakServerOutlivesItsClients, on rxe, and with both drivers.
func TestGuestSoakServerOutlivesItsClients(t *testing.T) {
	requireGuest(t)
	for _, on := range []struct{ server, clients int }{{0, 0}, {0, 1}, {1, 0}} {
		server, clients := drivers[on.server], drivers[on.clients]
		t.Run(server.name+", clients on "+clients.name, func(t *testing.T) {
			outlive(t, server.open(t), clients.name, soak.Rounds(t, 24, 96), soak.Duration(t, 3*time.Second, 3*time.Minute))
		})
	}
}

// As TestKeepaliveNoticesTheDead, with the kernel's driver at one end, or both.
func TestGuestKeepaliveNoticesTheDead(t *testing.T) {
	requireGuest(t)
	for _, on := range []struct{ own, peer int }{{0, 0}, {0, 1}, {1, 0}} {
		own, peer := drivers[on.own], drivers[on.peer]
		for _, how := range idlers {
			t.Run(own.name+", peer on "+peer.name+"/"+how.name, func(t *testing.T) {
				diesIdle(t, own.open, peer.name, syscall.SIGKILL, 20*time.Millisecond, how)
				diesIdle(t, own.open, peer.name, syscall.SIGKILL, 0, how)
			})
		}
	}
}

// As TestKeepaliveOfTheLiving.
func TestGuestKeepaliveOfTheLiving(t *testing.T) {
	requireGuest(t)
	for _, on := range couples {
		t.Run(on.name, func(t *testing.T) {
			idleAndAlive(t, on.a(t), on.b(t), func(r *rig) {
				start := time.Now()
				r.until("keepalives have been said", func() bool { return time.Since(start) > 300*time.Millisecond })
			})
		})
	}
}

// As TestGoodbye and TestGoodbyeToASleeper. rxe does not say that memory was written:
// its end looks for a goodbye at every keepalive.
func TestGuestGoodbye(t *testing.T) {
	requireGuest(t)
	for _, on := range couples[:3] {
		t.Run(on.name, func(t *testing.T) {
			for _, stop := range []bool{false, true} {
				goodbye(t, on.a(t), on.b(t), stop, true)
			}
			sleeper(t, on.a(t), on.b(t))
		})
	}
}
