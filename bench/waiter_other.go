//go:build !linux

package main

import (
	"time"

	"github.com/verbena-rdma/verbena/pe"
)

type waiter struct{}

func newWaiter(int) (*waiter, error) { return nil, pe.ErrNotSupported }

func (*waiter) wait(time.Duration) error { return pe.ErrNotSupported }

func (*waiter) close() {}
