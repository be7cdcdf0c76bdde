package sockets

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/bench/internal/median"
	"github.com/verbena-rdma/verbena/bench/internal/veth"
)

// loopback are the ways over the loopback interface. The first of a network's ways is TCP.
var loopback = []way{
	{name: "TCP", listen: "127.0.0.1:0"},
	{name: "shared memory", devices: [2]string{"soft-lo", "soft-lo"}, listen: "127.0.0.1:0"},
	{name: "UDP", devices: [2]string{"soft-lo?local=off", "soft-lo?local=off"}, listen: "127.0.0.1:0"},
}

// apart are the ways between two namespaces.
func apart(l *veth.Link) []way {
	at := veth.Addresses
	prefix := [2][]string{l.Run(0), l.Run(1)}
	return []way{
		{name: "TCP", listen: at[0] + ":0", prefix: prefix},
		{name: "UDP", devices: [2]string{"soft-" + at[0], "soft-" + at[1]}, listen: at[0] + ":0", prefix: prefix},
	}
}

// row is a measurement of all ways.
type row struct {
	name string
	unit string
	in   float64 // the unit, in seconds, bytes a second or requests a second
	request
}

// rows are the measurements that the flag -only selects for a network.
func (o options) rows(network string) (list []row) {
	add := func(name, unit string, in float64, q request) {
		q.Time, q.Count = o.duration, o.requests
		if o.selected(network + " " + q.Do + " " + name) {
			list = append(list, row{name, unit, in, q})
		}
	}
	sizes := []struct {
		name  string
		bytes int
	}{{"1 B", 1}, {"4 KiB", 4 << 10}, {"64 KiB", 64 << 10}, {"1 MiB", 1 << 20}}
	for _, s := range sizes {
		add("round trip, "+s.name, "µs", 1e-6, request{Do: "trip", Size: s.bytes})
	}
	for _, s := range sizes {
		add("bandwidth, "+s.name, "MB/s", 1e6, request{Do: "bandwidth", Size: s.bytes})
	}
	for _, s := range sizes[1:3] {
		add("HTTP, "+s.name, "requests/s", 1, request{Do: "http", Size: s.bytes})
	}
	return list
}

// result is the values of one way, and the values relative to TCP of the same round.
type result struct{ values, ratios []float64 }

// compare measures all ways of each network. It returns tables.
func compare(ctx context.Context, o options) (text string, err error) {
	if rows := o.rows("loopback"); len(rows) > 0 {
		if text, err = o.network(ctx, "loopback", o.choose(loopback), rows); err != nil {
			return text, err
		}
	}
	rows := o.rows("veth")
	if len(rows) == 0 {
		return text, nil
	}
	l, err := veth.New(o.mtu)
	if err != nil {
		return text, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	more, err := o.network(ctx, "veth", o.choose(apart(l)), rows)
	return text + more, err
}

// network measures the ways of a network in turns. It returns a table.
func (o options) network(ctx context.Context, network string, ways []way, rows []row) (text string, err error) {
	var pairs []*pair
	defer func() {
		for _, p := range pairs {
			err = errors.Join(err, p.stop())
		}
	}()
	for _, w := range ways {
		p, err := w.start(ctx, o, 4*o.requests)
		if err != nil {
			return "", fmt.Errorf("%s, %s: %w", network, w.name, err)
		}
		pairs = append(pairs, p)
	}
	results := make([][]result, len(rows))
	for i, r := range rows {
		results[i] = make([]result, len(ways))
		for range o.rounds {
			for k, p := range pairs {
				answer, processors, err := p.measure(r.request)
				if err != nil {
					return "", fmt.Errorf("%s, %s, %s: %w", network, p.name, r.name, err)
				}
				o.note("%s, %s, %s: %.5g %s, %.2f processors", network, r.name, p.name, answer.Value/r.in, r.unit, processors)
				results[i][k].add(answer.Value, results[i][0].values)
			}
		}
	}
	return table(o, network, ways, rows, results), nil
}

// add adds a value. first are those of the first way.
func (r *result) add(v float64, first []float64) {
	r.values = append(r.values, v)
	if len(first) == 0 {
		first = r.values
	}
	r.ratios = append(r.ratios, v/first[len(first)-1])
}

// table returns the results in Markdown.
func table(o options, network string, ways []way, rows []row, results [][]result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Package rsocket beside TCP, %s; medians of %d rounds, and in brackets the median of their ratios to TCP:\n\n|", network, o.rounds)
	for _, w := range ways {
		b.WriteString(" | " + w.name)
	}
	b.WriteString(" |\n|---" + strings.Repeat("|---", len(ways)) + "|\n")
	for i, r := range rows {
		fmt.Fprintf(&b, "| %s, %s |", r.name, r.unit)
		for k, way := range results[i] {
			fmt.Fprintf(&b, " %.4g", median.Of(way.values)/r.in)
			if k > 0 {
				fmt.Fprintf(&b, " (%.2f)", median.Of(way.ratios))
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	return b.String()
}
