//go:build !linux

package local

import (
	"context"
	"errors"
	"sync"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// ErrRefused: the other device refuses a channel.
var ErrRefused = errors.New("the device refused the channel")

type file struct{}

type connection struct{}

func (*connection) wake()                       {}
func (*connection) export(uint32, *Memory) bool { return false }
func (*connection) forget(uint32) bool          { return true }
func (*connection) ping(uint32) bool            { return true }

// Listener accepts channels from other devices.
type Listener struct{}

// Listen fails.
func Listen(Address) (*Listener, error) { return nil, errors.ErrUnsupported }

// Serve does nothing.
func (*Listener) Serve(func(Address) func(*Channel)) {}

// Close does nothing.
func (*Listener) Close() {}

// Dial fails.
func Dial(context.Context, Ends) (*Channel, error) { return nil, errors.ErrUnsupported }

// Watch fails.
func (*Channel) Watch(link.WaitSet, func()) error { return errors.ErrUnsupported }

// TakeWakeups reports false.
func (*Channel) TakeWakeups() bool { return false }

// Serve fails.
func (*Channel) Serve(sync.Locker, func()) error { return errors.ErrUnsupported }

// PeerProcessDied reports false.
func (*Channel) PeerProcessDied(context.Context) bool { return false }

func (*Channel) shutdown() {}

// CloseConnection does nothing.
func (*Channel) CloseConnection() {}

// AllocMemory fails.
func AllocMemory(int) (*Memory, error) { return nil, errors.ErrUnsupported }

// Free does nothing.
func (*Memory) Free() error { return nil }
