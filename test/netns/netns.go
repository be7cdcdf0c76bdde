// Package netns makes network namespaces, for tests and measurements that need several hosts. It
// needs Linux, root, and the programs of iproute2 and util-linux.
package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/internal/process"
)

// Namespace is a network namespace. It has no name: it vanishes with the processes in it, even if
// this program is killed and cannot close it.
type Namespace struct{ holder *process.Process }

// ErrUnavailable: network namespaces cannot be made here. The text says what is missing.
var ErrUnavailable = errors.New("network namespaces are not available")

// Make makes a namespace, whose loopback interface is up. It ends with ctx.
func Make(ctx context.Context) (n Namespace, err error) {
	for program, from := range map[string]string{"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2"} {
		if _, err := exec.LookPath(program); err != nil {
			return n, fmt.Errorf("%w: %s is not installed (Debian package %s)", ErrUnavailable, program, from)
		}
	}
	n.holder, err = process.Start(ctx, process.Program{
		Args: []string{"unshare", "--net", "--", "sh", "-c", "ip link set lo up && echo ready && exec cat"}, In: true,
	})
	if err != nil {
		return n, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if err := n.holder.Await(ctx, "ready"); err != nil {
		n.Close()
		return n, fmt.Errorf("%w: they need root with the capability CAP_SYS_ADMIN: %w", ErrUnavailable, err)
	}
	return n, nil
}

// Close removes the namespace, unless a process runs in it.
func (n Namespace) Close() { n.holder.Kill() }

// String is the number of a process in the namespace, which ip(8) takes for its name.
func (n Namespace) String() string { return strconv.Itoa(n.holder.PID()) }

// Run returns the beginning of a command line that runs in the namespace. The programs of that
// command line are one process. It sees the interfaces of the namespace in /sys too.
func (n Namespace) Run() []string {
	return append(n.enter(), "unshare", "--mount", "--", "sh", "-c", `mount -t sysfs -o ro sysfs /sys && exec "$@"`, "sh")
}

func (n Namespace) enter() []string {
	return []string{"nsenter", "--target", n.String(), "--net", "--"}
}

// Command runs a command in the namespace, and returns its output.
func (n Namespace) Command(ctx context.Context, command ...string) (string, error) {
	return process.Run(ctx, process.Program{Args: append(n.enter(), command...)})
}

// Host is a namespace on a network.
type Host struct {
	Namespace
	V4, V6 netip.Addr // of its interface Link
}

// Link is the interface of each Host.
const Link = "e0"

// Network is a network of hosts: a cable between two, or a bridge between more. The i-th has the
// addresses 10.11.0.i+1 and fd11::i+1.
type Network struct {
	Hosts      []Host
	namespaces []Namespace
}

// MakeNetwork makes hosts whose interfaces have that MTU. It returns when they reach each other.
func MakeNetwork(ctx context.Context, hosts, mtu int) (n *Network, err error) {
	n = new(Network)
	defer func() {
		if err != nil {
			n.Close()
			n = nil
		}
	}()
	add := func() (Namespace, error) {
		s, err := Make(ctx)
		if err == nil {
			n.namespaces = append(n.namespaces, s)
		}
		return s, err
	}
	for i := range hosts {
		s, err := add()
		if err != nil {
			return n, err
		}
		n.Hosts = append(n.Hosts, Host{s, netip.AddrFrom4([4]byte{10, 11, 0, byte(i + 1)}), netip.AddrFrom16([16]byte{0xfd, 0x11, 15: byte(i + 1)})})
	}
	if hosts == 2 {
		if err := n.Hosts[0].connect(ctx, mtu, Link, n.Hosts[1].Namespace); err != nil {
			return n, err
		}
	} else {
		bridge, err := add()
		if err == nil {
			_, err = bridge.Command(ctx, "sh", "-ec", "ip link add bridge type bridge; ip link set bridge addrgenmode none up")
		}
		for i, h := range n.Hosts {
			port := fmt.Sprintf("p%d", i)
			if err == nil {
				err = h.connect(ctx, mtu, port, bridge)
			}
			if err == nil {
				_, err = bridge.Command(ctx, "ip", "link", "set", port, "addrgenmode", "none", "master", "bridge", "up")
			}
		}
		if err != nil {
			return n, err
		}
	}
	for _, h := range n.Hosts {
		// A generated address could not be used until it has been checked.
		script := fmt.Sprintf("ip link set %[1]s addrgenmode none; ip addr add %[2]s/24 dev %[1]s; ip addr add %[3]s/64 dev %[1]s nodad; ip link set %[1]s up", Link, h.V4, h.V6)
		if _, err = h.Command(ctx, "sh", "-ec", script); err != nil {
			return n, err
		}
	}
	for _, h := range n.Hosts {
		if err = h.awaitLink(ctx); err != nil {
			return n, err
		}
	}
	return n, nil
}

// connect makes the host's interface, and the other end of its cable.
func (h Host) connect(ctx context.Context, mtu int, far string, at Namespace) error {
	_, err := h.Command(ctx, strings.Fields(fmt.Sprintf("ip link add %s mtu %d type veth peer name %s mtu %d netns %s", Link, mtu, far, mtu, at))...)
	return err
}

// awaitLink waits until the interface passes packets. The kernel takes up to a second to notice
// that both ends of a cable are up, and drops packets until then.
func (h Host) awaitLink(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the link between the namespaces did not come up"))
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var flags net.Flags
		err := h.Do(func() error {
			i, err := net.InterfaceByName(Link)
			if err == nil {
				flags = i.Flags
			}
			return err
		})
		if err != nil || flags&net.FlagRunning != 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Close removes the hosts and what connects them.
func (n *Network) Close() {
	for _, s := range n.namespaces {
		s.Close()
	}
}
