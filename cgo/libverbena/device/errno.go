//go:build linux && cgo && verbs

package main

// #include "device.h"
import "C"

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/verbs"
)

// logger writes to standard error what VERBENA_LOG asks for.
var logger = sync.OnceValue(func() zerolog.Logger {
	level, err := zerolog.ParseLevel(os.Getenv("VERBENA_LOG"))
	if err != nil || level == zerolog.NoLevel {
		return zerolog.Nop()
	}
	return zerolog.New(zerolog.ConsoleWriter{Out: os.Stderr, NoColor: true}).Level(level).With().Timestamp().Logger()
})

// errnoTable has the errnos of manual pages for the errors of package verbs.
type errnoTable []struct {
	err   error
	errno syscall.Errno
}

// find returns zero for an error that is not in the table.
func (t errnoTable) find(err error) syscall.Errno {
	for _, e := range t {
		if errors.Is(err, e.err) {
			return e.errno
		}
	}
	return 0
}

// errnos are those of libibverbs.
var errnos = errnoTable{
	{verbs.ErrQueueFull, syscall.ENOMEM},
	{verbs.ErrNotSupported, syscall.EOPNOTSUPP},
	{verbs.ErrInUse, syscall.EBUSY},
	{verbs.ErrNoDevice, syscall.ENODEV},
	{verbs.ErrClosed, syscall.ENODEV},
	{verbs.ErrInvalid, syscall.EINVAL},
	{verbs.ErrState, syscall.EINVAL},
	{verbs.ErrLimit, syscall.EINVAL},
	{verbs.ErrOverrun, syscall.EOVERFLOW},
}

func logError(err error) {
	log := logger()
	if e := log.Info(); e.Enabled() { // the text of an error takes longer than the call
		e.Msg(err.Error())
	}
}

// errnoOf returns the errno for an error, zero for nil, and logs the error.
func errnoOf(err error) C.int {
	if err == nil {
		return 0
	}
	logError(err)
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != 0 {
		return C.int(errno)
	}
	if errno = errnos.find(err); errno != 0 {
		return C.int(errno)
	}
	return C.int(syscall.EIO)
}

// noSuch is the errno for a handle that names nothing: the program uses an object that it has
// destroyed.
const noSuch = C.int(syscall.EINVAL)
