package report

import (
	"encoding/csv"
	"io"
	"strconv"
	"time"
)

var csvHeader = []string{
	"time", "test", "round", "bytes", "connections", "engines", "depth", "batch", "moderation", "bidirectional", "events",
	"client_device", "server_device", "mtu", "operations", "seconds", "operations_per_second", "bytes_per_second", "peak_bytes_per_second",
	"min_us", "max_us", "typical_us", "avg_us", "stdev_us", "p90_us", "p99_us", "p99.9_us", "p99.99_us",
	"client_cpu_ns", "server_cpu_ns", "damage",
}

// WriteCSV writes a table with a line for each result. Columns that a test does not measure
// are empty.
func WriteCSV(w io.Writer, list []*Report) error {
	c := csv.NewWriter(w)
	_ = c.Write(csvHeader) // Error returns the first error
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	for _, r := range list {
		p := &r.Plan
		for i := range r.Results {
			res := &r.Results[i]
			line := []string{
				r.Time.Format(time.RFC3339), p.Test.String(), strconv.Itoa(res.Round), strconv.Itoa(res.Size),
				strconv.Itoa(p.Connections), strconv.Itoa(p.Engines), strconv.Itoa(p.Depth), strconv.Itoa(p.Batch), strconv.Itoa(p.Moderation),
				strconv.FormatBool(p.Bidirectional), strconv.FormatBool(p.Events),
				r.Client.Device, r.Server.Device, strconv.Itoa(r.Path.MTU), strconv.FormatInt(res.Operations, 10), number(res.Seconds),
				number(res.Rate), number(res.Bandwidth), number(res.Peak),
			}
			if l := res.Latency; l != nil {
				for _, v := range []float64{l.Min, l.Max, l.Typical, l.Avg, l.Stdev, l.P90, l.P99, l.P999, l.P9999} {
					line = append(line, number(v))
				}
			} else {
				line = append(line, make([]string, 9)...)
			}
			_ = c.Write(append(line, number(res.Client.CPU), number(res.Server.CPU), res.Damage))
		}
	}
	c.Flush()
	return c.Error()
}
