package rsocket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/soft"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(writeTo); addr != "" {
		os.Exit(writeAndExit(addr))
	}
	if to := os.Getenv(dialTo); to != "" {
		os.Exit(dialOnce(to))
	}
	goleak.VerifyTestMain(m)
}

// writeTo is the environment variable with the address that writeAndExit writes to.
const writeTo = "VERBENA_TEST_WRITE_TO"

const written = 3 << 20 // bytes

// writeAndExit is a program that ends as soon as Close has returned.
func writeAndExit(addr string) int {
	c, err := Dial(context.Background(), addr)
	if err == nil {
		_, err = c.Write(make([]byte, written))
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// What was written arrives, though the program ends as soon as Close has returned.
func TestExitAfterClose(t *testing.T) {
	l, err := Listen("127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), writeTo+"="+l.Addr().String())
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	c, err := l.Accept()
	require.NoError(t, err)
	n, err := io.Copy(io.Discard, c)
	require.NoError(t, err)
	require.EqualValues(t, written, n)
	require.NoError(t, errors.Join(c.Close(), cmd.Wait()))
}

// paths are the ways of packets between two software devices of one machine.
var paths = map[string]soft.Config{"shared memory": {}, "UDP": {DisableLocal: true}}

// open makes a stack on a device of its own.
func open(t testing.TB, dev soft.Config, cfg Config) *Stack {
	t.Helper()
	d, err := soft.Open(dev)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	cfg.Device = d
	s, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// connect makes a connection of two stacks.
func connect(t testing.TB, client, server *Stack) (near, far *Conn) {
	t.Helper()
	l, err := server.Listen("127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	near, err = client.Dial(context.Background(), l.Addr().String())
	require.NoError(t, err)
	c, err := l.Accept()
	require.NoError(t, err)
	return near, c.(*Conn)
}

var _ net.Conn = (*Conn)(nil)
