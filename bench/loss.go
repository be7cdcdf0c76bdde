package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/rdma"
)

// lossRates are the shares of packets that each end drops of those that arrive.
var lossRates = []float64{0, 0.05}

// ackTimeouts are those that are compared. The first is the default, with which the
// software device adapts.
var ackTimeouts = []time.Duration{0, 524 * time.Microsecond, time.Millisecond, 2 * time.Millisecond,
	4 * time.Millisecond, 16 * time.Millisecond, 67 * time.Millisecond}

// lossLoads are what is written.
var lossLoads = []struct {
	size, window int
}{{1 << 20, 8}, {4096, 16}, {8, 1}}

// compareLoss measures writes over paths that lose packets, with the default
// retransmission and with time-outs set by hand.
func compareLoss(o options) (string, error) {
	if soft, err := isSoft(o.device); err != nil || !soft {
		return "only the software device loses packets on demand", err
	}
	o.duration /= time.Duration(o.rounds)
	separator := "?"
	if strings.Contains(o.device, "?") {
		separator = "&"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "writes/s by AckTimeout, the best of %d rounds\n            %6s %8s %7s", o.rounds, "loss", "bytes", "window")
	for _, t := range ackTimeouts {
		name := t.String()
		if t == 0 {
			name = "default"
		}
		fmt.Fprintf(&b, " %9s", name)
	}
	b.WriteString("   default / best")
	for _, load := range lossLoads {
		for _, rate := range lossRates {
			o := o
			o.size, o.window = load.size, load.window
			o.device = fmt.Sprintf("%s%sloss=%v", o.device, separator, rate)
			row, err := compareTimeouts(o)
			if err != nil {
				return "", fmt.Errorf("%v lost: %w", rate, err)
			}
			fmt.Fprintf(&b, "\n            %5.1f%% %8d %7d%s", 100*rate, load.size, load.window, row)
		}
	}
	return b.String(), nil
}

// compareTimeouts measures with each time-out, in turns.
func compareTimeouts(o options) (string, error) {
	rates := make([]float64, len(ackTimeouts)) // zero: failed
	for range o.rounds {
		for i, t := range ackTimeouts {
			o.ackTimeout = t
			_, err := withPeer(o, o.window, max(o.size, 4096), func(e *endpoint) (string, error) {
				n, elapsed, err := repeat(e, o)
				if err == nil {
					rates[i] = max(rates[i], float64(n)/elapsed.Seconds())
				}
				return "", err
			})
			switch {
			case errors.Is(err, rdma.ErrRetryExceeded):
				// Too short a time-out for a busy machine loses the connection.
			case err != nil:
				return "", fmt.Errorf("AckTimeout %v: %w", t, err)
			}
		}
	}
	var b strings.Builder
	best := 0.0
	for i, rate := range rates {
		if i > 0 {
			best = max(best, rate)
		}
		if rate == 0 {
			fmt.Fprintf(&b, " %9s", "failed")
			continue
		}
		fmt.Fprintf(&b, " %9.0f", rate)
	}
	fmt.Fprintf(&b, "   %.2f", rates[0]/max(best, 1))
	return b.String(), nil
}

// isSoft reports whether a name is that of a software device.
func isSoft(name string) (bool, error) {
	dev, err := device.Open(name)
	if err != nil {
		return false, err
	}
	return dev.Driver() == "soft", dev.Close()
}
