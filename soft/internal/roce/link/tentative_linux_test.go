package link

import (
	"net/netip"
	"os/exec"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/test/netns"
)

// The error of an address that the system still checks says so.
func TestTentativeAddress(t *testing.T) {
	done := make(chan struct{})
	errs := make(map[string]error)
	var failed error
	go func() {
		defer close(done)
		runtime.LockOSThread() // which ends with the goroutine, and its namespace with it
		if failed = unix.Unshare(unix.CLONE_NEWNET); failed != nil {
			return
		}
		failed = exec.Command("sh", "-ec", `ip link add d0 type veth peer name d1
			ip link set d0 up
			ip link set d1 up
			sysctl -q net.ipv6.conf.d0.dad_transmits=1000
			ip addr add 2001:db8::7/64 dev d0`).Run()
		for _, addr := range []string{"[2001:db8::7]:0", "[2001:db8::8]:0"} {
			_, errs[addr] = Listen(Config{Addr: netip.MustParseAddrPort(addr)})
		}
	}()
	<-done
	netns.Need(t, failed, "the test needs to create a network namespace")
	require.ErrorContains(t, errs["[2001:db8::7]:0"], "the address is tentative")
	require.ErrorContains(t, errs["[2001:db8::8]:0"], "no interface")
}
