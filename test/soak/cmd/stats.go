package main

import (
	"fmt"

	"github.com/verbena-rdma/verbena/test/traffic"
)

// stats counts what a process has done and verified so far.
type stats struct {
	traffic.Stats
	Links int // connections and endpoints in use now
}

func (s *stats) add(o *stats) {
	s.Add(&o.Stats)
	s.Links += o.Links
}

// amount is a number of bytes, for people.
func amount(n uint64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 10<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 10<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}
