package main

import (
	"context"
	"os"

	"github.com/verbena-rdma/verbena/internal/pair"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

// demoRow is one row of the table.
type demoRow struct {
	pair pair.Pair
	way  pair.Way
	args []string // for both programs
}

// demoRows gives each pair one row, and distributes the ways among the rows. multicast: the
// device supports multicast, which some do not.
func demoRows(multicast bool) []demoRow {
	ways := pair.Ways()
	var rows []demoRow
	for i, p := range pair.Samples() {
		d := demoRow{pair: p, way: ways[i%len(ways)]}
		if p.Messages > 1 && !p.Values {
			d.pair.Messages = 8
			d.args = []string{"-nc", "8"}
		}
		rows = append(rows, d)
	}
	if multicast {
		rows = append(rows, demoRow{pair: pair.Multicast(), way: pair.Group})
	}
	return rows
}

// run runs both programs. It fails if one fails, or if they have not seen the same data.
func (d *demoRow) run(ctx context.Context, bin, dev string) (result pair.Result, err error) {
	scratch, err := os.MkdirTemp("", "verbena-demo-")
	if err != nil {
		return result, err
	}
	defer sample.Close(&err, func() error { return os.RemoveAll(scratch) })
	args := append([]string{"-d", dev, "-timeout", patience}, d.args...)
	result, err = pair.Run(ctx, d.pair, pair.Options{
		Bin: bin, Scratch: scratch, Way: d.way, RequesterArgs: args, ResponderArgs: args,
	})
	if err != nil {
		return result, err
	}
	return result, result.Verify()
}
