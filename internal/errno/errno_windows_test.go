package errno

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNamesOnWindows(t *testing.T) {
	for number, name := range map[syscall.Errno]error{
		10013: syscall.EACCES, 10040: syscall.EMSGSIZE, 10048: syscall.EADDRINUSE, 10049: syscall.EADDRNOTAVAIL,
		10051: syscall.ENETUNREACH, 10054: syscall.ECONNRESET, 10055: syscall.ENOBUFS, 10061: syscall.ECONNREFUSED,
		10065: syscall.EHOSTUNREACH, 112: syscall.ENOSPC, 17: syscall.EXDEV,
	} {
		assert.ErrorIs(t, Named(number), name, "%d", number)
	}
}
