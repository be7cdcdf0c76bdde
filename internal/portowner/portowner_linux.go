package portowner

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/internal/terminal"
)

// Find returns the owner of the UDP port of an address of this machine. It returns nil if the
// port has no owner, or the owner cannot be found.
func Find(addr netip.AddrPort) *Owner {
	for _, table := range []string{"udp", "udp6"} {
		f, err := os.Open(filepath.Join("/proc/thread-self/net", table))
		if err != nil {
			continue
		}
		list := parse(f, addr.Port())
		_ = f.Close()
		for _, s := range list {
			if !s.covers(addr.Addr().Unmap().WithZone("")) {
				continue
			}
			o := &Owner{Addr: s.local, User: s.user, Kernel: s.inode == 0}
			if !o.Kernel {
				o.PID, o.Command = process(s.inode)
				o.Kernel = o.PID == 0 && os.Geteuid() == 0 // root sees every process
			}
			return o
		}
	}
	return nil
}

// process finds the process that has a socket open, among the processes that this user may
// inspect.
func process(inode uint64) (pid int, command string) {
	want := fmt.Sprintf("socket:[%d]", inode)
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		fds, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if link, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err != nil || link != want {
				continue
			}
			comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
			pid, _ = strconv.Atoi(filepath.Base(dir))
			return pid, terminal.Printable(strings.Join(strings.Fields(string(comm)), " ")) // a process chooses its name
		}
	}
	return 0, ""
}
