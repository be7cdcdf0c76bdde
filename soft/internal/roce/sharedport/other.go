//go:build !linux

package sharedport

import (
	"context"
	"errors"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// Group is for Linux.
type Group struct{}

// Lock is for Linux.
func Lock() (unlock func(), err error) { return nil, errors.ErrUnsupported }

// Join is for Linux.
func Join(context.Context, link.Config) (*Group, error) { return nil, errors.ErrUnsupported }

// JoinTimeout is for Linux.
const JoinTimeout = time.Second

// TakeRest is for Linux.
func (*Group) TakeRest(int) {}

// HasRest is for Linux.
func (*Group) HasRest(int) bool { return false }

// Claim is for Linux.
func (*Group) Claim(int) bool { return false }

// Release is for Linux.
func (*Group) Release(int) {}

// Socket is for Linux.
func (*Group) Socket(int) (int, error) { return 0, errors.ErrUnsupported }

// Listen is for Linux.
func (*Group) Listen(uint32, int) error { return errors.ErrUnsupported }

// Unlisten is for Linux.
func (*Group) Unlisten(uint32, int) {}

// Use is for Linux.
func (*Group) Use(int, uint16) error { return errors.ErrUnsupported }

// Port is for Linux.
func (*Group) Port(int) uint16 { return 0 }

// Close is for Linux.
func (*Group) Close() {}
