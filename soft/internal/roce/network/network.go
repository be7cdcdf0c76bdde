// Package network has what a device runs on: sockets, memory, and the host's clock, random
// numbers and goroutines. System is that of this machine.
package network

import (
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// Network is what a device runs on. Its methods may be called from any goroutine, and do not
// call the device.
type Network interface {
	host.Host
	// Since is Now().Sub(t), in less time.
	Since(t time.Time) time.Duration
	// Listen opens a socket.
	Listen(cfg link.Config) (*link.Socket, error)
	// Serve makes a simulated network call work, on a goroutine of its own, when a packet has arrived
	// at the socket, at the time that work returned last (zero: never), and at an earlier SetDeadline
	// and after an Interrupt of the socket's [link.WaitSet].
	Serve(s *link.Socket, work func() (next time.Time))
	// Address is the address of memory in work requests and packets, the same one until
	// Release was called as often.
	Address(mem []byte) uint64
	Release(mem []byte)
	// AllocMemory allocates size bytes. Nil: the device does it.
	AllocMemory(size int) (mem []byte, free func() error)
	// Simulated reports whether the network is one in memory: no other process has part in it,
	// and Address does not return pointers.
	Simulated() bool
}

// System is the network of this machine.
var System Network = system{host.System}

type system struct{ host.Host }

func (system) Since(t time.Time) time.Duration { return time.Since(t) }

func (system) Listen(cfg link.Config) (*link.Socket, error) { return link.Listen(cfg) }

func (system) Serve(*link.Socket, func() time.Time) {}

func (system) Address(mem []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

func (system) Release([]byte) {}

func (system) AllocMemory(int) ([]byte, func() error) { return nil, nil }

func (system) Simulated() bool { return false }
