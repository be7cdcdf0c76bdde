//go:build !linux

// Command pe_event needs epoll, which only Linux has.
package main

import (
	"context"
	"runtime"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

func main() {
	sample.Main(sample.Program{
		Name:   "pe_event",
		About:  "Copies memory, with an engine whose descriptor is in an epoll set (Linux).",
		Device: "soft-lo",
	}, run)
}

func run(context.Context, *sample.Session) error {
	return &pe.UnsupportedError{
		Feature: "a descriptor for epoll", Platform: runtime.GOOS, Instead: "pe_polling or pe_reactive",
	}
}
