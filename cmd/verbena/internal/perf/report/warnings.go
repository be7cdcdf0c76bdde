package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
)

// shortest is how long a measurement should last at least, in seconds.
const shortest = 0.05

// repeats are counters that grow when packets are repeated, which spoils any figure.
var repeats = []string{
	"completer_retry_err", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "rcvd_seq_err", "retry_exceeded_err", "send_rnr_err", // soft, rxe
	"local_ack_timeout_err", "out_of_sequence", "packet_seq_err", "rnr_nak_retry_err", // mlx5
}

// WarningsOf returns why the figures of a report cannot be trusted.
func WarningsOf(r *Report) (list []string) {
	add := func(format string, args ...any) {
		if w := fmt.Sprintf(format, args...); !slices.Contains(list, w) {
			list = append(list, w)
		}
	}
	ends := []struct {
		name   string
		host   *control.Host
		usage  func(*Result) *Usage
		server bool
	}{
		{"client", &r.Client, func(res *Result) *Usage { return &res.Client }, false},
		{"server", &r.Server, func(res *Result) *Usage { return &res.Server }, true},
	}
	same := r.Client.Machine.ID != "" && r.Client.Machine.ID == r.Server.Machine.ID
	pollers := [2]int{}
	for i, e := range ends {
		m := &e.host.Machine
		if r.Plan.Polls(e.server) {
			pollers[i] = r.Plan.Engines
		}
		if same && i == 1 {
			continue // the client is the same machine
		}
		if m.Emulated {
			add("the processors of the %s are emulated: compare programs that run there, and nothing else", e.name)
		}
		if m.Governor != "" && m.Governor != "performance" {
			add("the frequency of the %s's processors is scaled (governor %s): set it to performance (cpupower frequency-set -g performance)", e.name, m.Governor)
		}
		if m.Load > 0.5*float64(m.CPUs) {
			add("the load average of the %s was %.2f at the beginning, on %d processors: other programs take part of the time", e.name, m.Load, m.CPUs)
		}
	}
	if same {
		if n := pollers[0] + pollers[1]; n > r.Client.Machine.CPUs {
			add("%d engines poll on the %d processors of one machine and compete for time slices; use fewer engines, or events (-e)", n, r.Client.Machine.CPUs)
		}
	} else {
		for i, e := range ends {
			if pollers[i] > e.host.Machine.CPUs {
				add("%d engines of the %s poll on %d processors and compete for time slices", pollers[i], e.name, e.host.Machine.CPUs)
			}
		}
	}
	var again []string
	for i := range r.Results {
		res := &r.Results[i]
		if res.Seconds < shortest {
			add("some measurements took less than %.0f ms: use -D or a larger -n", 1000*shortest)
		}
		for _, e := range ends {
			u := e.usage(res)
			if u.Swapped > 0 {
				add("the %s's machine was swapping", e.name)
			}
			for _, c := range u.Counters {
				grown := e.name + "'s " + c.Name
				if slices.Contains(repeats, c.Name) && c.Delta > 0 && !slices.Contains(again, grown) {
					again = append(again, grown)
				}
			}
		}
	}
	if len(again) > 0 {
		add("packets were retransmitted, because they were lost or late, or no receive was posted: the %s grew", strings.Join(again, ", the "))
	}
	if r.Plan.Verify {
		add("all data was verified, which takes time: these are not the figures of the device")
	}
	return list
}
