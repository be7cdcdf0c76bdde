package unixsocket

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/test/netns"
)

// childVariable has the test binary be the other process of TestCheckPeer.
const childVariable = "VERBENA_TEST_VISITOR"

// dialAndCheck connects to a socket, prints what CheckPeer says of its owner, and waits.
func dialAndCheck(address string) error {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: address, Net: "unixpacket"})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = CheckPeer(conn)
	fmt.Println(os.Getpid(), err)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return nil
}

// A process is only taken if it could read the memory of this one. What containers have in
// common is no proof of that: the network namespace, the user, a number of 0.
func TestCheckPeer(t *testing.T) {
	mapping := func(inside, outside int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: inside, HostID: outside, Size: 1}}
	}
	uid, gid := os.Getuid(), os.Getgid()
	for name, c := range map[string]struct {
		attr         *syscall.SysProcAttr
		here, inside string // what is said of the visitor here, and of this process there
	}{
		"the same namespaces": {attr: &syscall.SysProcAttr{}},
		"another PID namespace": {
			attr: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID},
			here: "is in another pid namespace", inside: "outside this PID namespace",
		},
		"another user namespace": {
			attr: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: mapping(uid, uid), GidMappings: mapping(gid, gid)},
			here: "is in another user namespace", inside: "permission denied",
		},
		"a user that is not mapped": {
			attr: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER},
			here: "is in another user namespace", inside: "stands for all unmapped users",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: "@verbena/test/check peer", Net: "unixpacket"})
			require.NoError(t, err)
			defer l.Close()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childVariable+"="+l.Addr().String(), "GORACE=atexit_sleep_ms=0")
			cmd.SysProcAttr, cmd.Stderr = c.attr, os.Stderr
			in, err := cmd.StdinPipe()
			require.NoError(t, err)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			if err = cmd.Start(); errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
				netns.Need(t, err, "the test needs to create namespaces")
			}
			require.NoError(t, err)
			conn, err := l.AcceptUnix()
			require.NoError(t, err)
			defer conn.Close()
			said, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			pid, err := CheckPeer(conn)
			if c.here == "" {
				require.NoError(t, err)
				require.Equal(t, cmd.Process.Pid, pid)
				require.Equal(t, fmt.Sprintln(pid, "<nil>"), said)
			} else {
				require.ErrorContains(t, err, c.here)
				require.ErrorIs(t, err, errors.ErrUnsupported)
				require.Contains(t, said, c.inside)
			}
			require.NoError(t, in.Close())
			require.NoError(t, cmd.Wait())
			_, err = CheckPeer(conn)
			require.Error(t, err, "its number may be that of another process now")
		})
	}
}

func TestMain(m *testing.M) {
	address := os.Getenv(childVariable)
	if address == "" {
		goleak.VerifyTestMain(m)
	}
	if err := dialAndCheck(address); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
