package peers

import (
	"fmt"

	"github.com/verbena-rdma/verbena/bench/internal/measure"
)

// kind is what is measured.
type kind int

const (
	oneWay     kind = iota // latency of a message from end to end, while both ends poll
	woken                  // the same, while both ends sleep until a message arrives
	rate                   // small operations, posted in batches
	bandwidth              // large operations
	trip                   // there and back through a stream
	stream                 // bandwidth of a stream
	connecting             // a stream: made, a byte there and back, closed
	requests               // of HTTP, a second
	bodies                 // of HTTP, the time of a request
	file                   // a file, with both programs' start
)

// figure is one thing to measure. It is comparable.
type figure struct {
	kind kind
	op   string // of bandwidth: write, read or send
	size int    // bytes of each operation

	callers int // of HTTP, at the same time, each with a connection
}

// figures returns all figures, in the order in which they are measured.
func figures() []figure {
	list := []figure{{kind: oneWay, size: 8}, {kind: woken, size: 8}, {kind: rate, size: 8}}
	for _, op := range []string{"write", "read", "send"} {
		for _, size := range []int{64 << 10, 1 << 20} {
			list = append(list, figure{kind: bandwidth, op: op, size: size})
		}
	}
	for _, k := range []kind{trip, stream} {
		for _, size := range []int{1, 4 << 10, 64 << 10, 1 << 20} {
			list = append(list, figure{kind: k, size: size})
		}
	}
	return append(list, figure{kind: connecting, size: 1}, figure{kind: requests, size: 4 << 10, callers: 1},
		figure{kind: requests, size: 4 << 10, callers: 16}, figure{kind: bodies, size: 1 << 20, callers: 16}, figure{kind: file})
}

// String describes the figure in words.
func (f figure) String() string {
	size := fmt.Sprintf("%d B", f.size)
	switch {
	case f.size == 0:
		size = ""
	case f.size%(1<<20) == 0:
		size = fmt.Sprintf("%d MiB", f.size>>20)
	case f.size%(1<<10) == 0:
		size = fmt.Sprintf("%d KiB", f.size>>10)
	}
	switch f.kind {
	case oneWay:
		return size + " one way, polling"
	case woken:
		return size + " one way, asleep"
	case rate:
		return size + " writes in batches"
	case trip:
		return size + " there and back"
	case stream:
		return size + " at a time"
	case connecting:
		return "connect, " + size + " there and back, close"
	case requests, bodies:
		return fmt.Sprintf("HTTP %s, %d at the same time", size, f.callers)
	case file:
		return "a file"
	}
	return fmt.Sprintf("%s %ss", size, f.op)
}

// isTime reports whether the figure is a time rather than an amount per second.
func (f figure) isTime() bool {
	return f.kind == oneWay || f.kind == woken || f.kind == trip || f.kind == connecting || f.kind == bodies
}

// sample is the result of one measurement.
type sample struct {
	median float64 // µs, for times; zero: the program does not report it
	mean   float64 // µs, for times; of bodies the 99th percentile; for rate and requests, operations a second; else bytes a second; zero: not reported
}

// each is the average time of an operation, in seconds.
func (f figure) each(s sample) float64 {
	switch {
	case f.kind == rate || f.kind == requests:
		return 1 / s.mean
	case f.isTime():
		return s.mean / 1e6
	}
	return float64(f.size) / s.mean
}

// values returns the values of the tables. Times have two lines, because not every program reports
// the median.
func (f figure) values(s sample) (list []measure.Value) {
	add := func(what, unit string, less bool, v float64) {
		if v > 0 {
			list = append(list, measure.Value{Row: measure.Row{Title: f.String() + what, Unit: unit, Less: less}, Of: v})
		}
	}
	switch {
	case f.kind == bodies:
		add(", median", "µs", true, s.median)
		add(", 99th percentile", "µs", true, s.mean)
	case f.isTime():
		add(", median", "µs", true, s.median)
		add(", mean", "µs", true, s.mean)
	case f.kind == requests:
		add("", "k/s", false, s.mean/1e3)
	case f.kind == rate:
		add("", "M/s", false, s.mean/1e6)
	default:
		add("", "GB/s", false, s.mean/1e9)
	}
	return list
}
