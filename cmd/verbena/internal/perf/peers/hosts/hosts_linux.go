package hosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Host is the place where an end runs.
type Host struct {
	Addr netip.Addr
	Link string   // the interface that has Addr
	Run  []string // prefix of each command that runs there
	Proc string   // folder of a process there, such as /proc/self
}

// Local returns this machine as both hosts.
func Local() [2]Host {
	h := Host{Addr: netip.AddrFrom4([4]byte{127, 0, 0, 1}), Link: "lo", Proc: "/proc/self"}
	return [2]Host{h, h}
}

// ErrUnavailable: network namespaces cannot be made here; the text says what is missing.
var ErrUnavailable = errors.New("network namespaces are not available")

// link is the interface of each of a Cabled pair.
const link = "e0"

// NamespacePair is two network namespaces, and a cable between them (veth(4)).
type NamespacePair struct {
	Hosts   [2]Host
	holders [2]*namespaceHolder
}

// NewNamespacePair makes two network namespaces with a cable of an MTU between them. The
// namespaces have no names: they vanish with the processes in them, even if this program is
// killed and cannot Remove them.
func NewNamespacePair(ctx context.Context, mtu int) (c *NamespacePair, err error) {
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return nil, fmt.Errorf("%w: nsenter is not installed (Debian package util-linux)", ErrUnavailable)
	}
	ip, err := exec.LookPath("ip")
	if err != nil {
		return nil, fmt.Errorf("%w: ip is not installed (Debian package iproute2)", ErrUnavailable)
	}
	c = &NamespacePair{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Remove())
			c = nil
		}
	}()
	for i := range c.holders {
		if c.holders[i], err = startHolder(); err != nil {
			return c, err
		}
		pid := strconv.Itoa(c.holders[i].cmd.Process.Pid)
		c.Hosts[i] = Host{
			Addr: netip.AddrFrom4([4]byte{10, 11, 0, byte(i + 1)}), Link: link, Proc: "/proc/" + pid,
			Run: []string{nsenter, "--target", pid, "--net", "--mount", "--"},
		}
	}
	if err = c.Hosts[0].run(ctx, ip, "link", "add", link, "mtu", strconv.Itoa(mtu), "type", "veth",
		"peer", "name", link, "mtu", strconv.Itoa(mtu), "netns", strconv.Itoa(c.holders[1].cmd.Process.Pid)); err != nil {
		return c, err
	}
	for i := range c.Hosts {
		h := &c.Hosts[i]
		for _, command := range [][]string{
			{ip, "addr", "add", h.Addr.String() + "/24", "dev", link},
			{ip, "link", "set", link, "up"},
			{ip, "link", "set", "lo", "up"},
			// Programs look for interfaces in /sys, and the inherited mount shows the
			// machine's.
			{"mount", "-t", "sysfs", "-o", "ro", "sysfs", "/sys"},
		} {
			if err = h.run(ctx, command...); err != nil {
				return c, err
			}
		}
	}
	for i := range c.Hosts {
		if err = c.Hosts[i].awaitLink(ctx); err != nil {
			return c, err
		}
	}
	return c, nil
}

// awaitLink waits until the cable passes packets. The kernel takes up to a second to notice
// that both ends of the cable are up, and drops packets until then.
func (h *Host) awaitLink(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the link between the namespaces did not come up"))
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		b, err := os.ReadFile(h.Proc + "/root/sys/class/net/" + h.Link + "/operstate")
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(b)) == "up" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// run runs a command on the host.
func (h *Host) run(ctx context.Context, command ...string) error {
	args := append(h.Run[:len(h.Run):len(h.Run)], command...)
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// Remove removes the namespaces and the cable.
func (c *NamespacePair) Remove() (err error) {
	for _, h := range c.holders {
		if h != nil {
			err = errors.Join(err, h.end())
		}
	}
	return err
}

// namespaceHolder is a process that keeps namespaces of its own alive. It ends when its
// standard input closes, at the latest when this program ends.
type namespaceHolder struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

func startHolder() (h *namespaceHolder, err error) {
	h = &namespaceHolder{cmd: exec.Command("cat")}
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	if h.stdin, err = h.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	err = h.cmd.Start()
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("%w: they need root with the capability CAP_SYS_ADMIN: %w", ErrUnavailable, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return h, nil
}

func (h *namespaceHolder) end() error {
	_ = h.stdin.Close()
	return h.cmd.Wait()
}
