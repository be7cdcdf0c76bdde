//go:build !linux

package link

import (
	"errors"
	"net/netip"
)

func open(cfg Config, zone int) (backend, netip.AddrPort, error) { return openPortable(cfg, zone) }

func setOptions(uintptr, Config) error { return nil }

func receiveBuffer(uintptr) int { return 0 }

// NewWaitSet returns a set for sockets.
func NewWaitSet(bool) (WaitSet, error) { return newPortableWaitSet(), nil }

// ReceiveFrom is for Linux.
func (s *Socket) ReceiveFrom(int) error { return errors.ErrUnsupported }
