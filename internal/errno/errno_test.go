package errno

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What a socket returns on Windows for an address in use.
func inUse() error {
	return &net.OpError{Op: "listen", Net: "udp4", Err: os.NewSyscallError("bind", syscall.Errno(10048))}
}

func windowsName(number syscall.Errno) error {
	if number == 10048 {
		return syscall.EADDRINUSE
	}
	return nil
}

func TestNamed(t *testing.T) {
	err := inUse()
	got := named(err, windowsName)
	assert.ErrorIs(t, got, syscall.EADDRINUSE)
	assert.ErrorIs(t, got, syscall.Errno(10048))
	assert.ErrorIs(t, got, err)
	assert.NotErrorIs(t, got, syscall.EADDRNOTAVAIL)
	assert.Equal(t, err.Error(), got.Error())
	var op *net.OpError
	assert.ErrorAs(t, fmt.Errorf("open: %w", got), &op)

	for _, other := range []error{io.EOF, net.ErrClosed, os.NewSyscallError("bind", syscall.EADDRNOTAVAIL)} {
		assert.Equal(t, other, named(other, windowsName))
	}
}

func TestNoErrorAllocatesNothing(t *testing.T) {
	assert.Zero(t, testing.AllocsPerRun(100, func() { _ = Named(nil) }))
	assert.NoError(t, Named(nil))
}

// An address in use is known as such on the system that runs the test.
func TestAddressInUse(t *testing.T) {
	first, err := net.ListenPacket("udp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, first.Close()) }()
	_, err = net.ListenPacket("udp4", first.LocalAddr().String())
	require.Error(t, err)
	assert.ErrorIs(t, Named(err), syscall.EADDRINUSE)
	assert.False(t, errors.Is(Named(err), syscall.EADDRNOTAVAIL))
}
