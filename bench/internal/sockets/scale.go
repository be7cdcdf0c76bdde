package sockets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/median"
)

// scale measures many connections to one process. It returns tables.
func scale(ctx context.Context, o options) (text string, err error) {
	for _, m := range []struct {
		name string
		run  func(context.Context, options) (string, error)
	}{{"idle", idle}, {"busy", busy}, {"stopped", stopped}} {
		if !o.selected(m.name) {
			continue
		}
		t, err := m.run(ctx, o)
		if text += t; err != nil {
			return text, fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return text, nil
}

// inTurns measures all ways in turns, each time with new processes that have room for so many
// connections. The results of each way are in the order of the rounds.
func inTurns[T any](ctx context.Context, o options, connections int, measure func(*pair) (T, error)) ([][]T, error) {
	ways := o.choose(loopback)
	results := make([][]T, len(ways))
	for range o.rounds {
		for i, w := range ways {
			p, err := w.start(ctx, o, connections)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			r, err := measure(p)
			if err = errors.Join(err, p.stop()); err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			o.note("%s: %.5g", w.name, r)
			results[i] = append(results[i], r)
		}
	}
	return results, nil
}

// column is a column of a table of results.
type column[T any] struct {
	name   string
	format string
	of     func(T) float64
}

// tableOf returns a table with a row for each way.
func tableOf[T any](o options, title string, results [][]T, columns []column[T]) string {
	var b strings.Builder
	b.WriteString(title + "\n\n|")
	for _, c := range columns {
		b.WriteString(" | " + c.name)
	}
	b.WriteString(" |\n|---" + strings.Repeat("|---", len(columns)) + "|\n")
	for i, w := range o.choose(loopback) {
		b.WriteString("| " + w.name)
		for _, c := range columns {
			fmt.Fprintf(&b, " | "+c.format, median.By(results[i], c.of))
		}
		b.WriteString(" |\n")
	}
	return b.String() + "\n"
}

// idleFigures are those of the server.
type idleFigures struct {
	taken                  float64 // seconds to connect all
	before                 float64 // bytes that are resident without connections
	heap, stacks, resident float64 // bytes for each connection
	server, client         float64 // processors in use while nothing happens
	alone                  float64 // the same of the server without connections
	left                   float64 // bytes of heap for each connection that remain when all have been closed
}

// idle measures connections on which nothing happens.
func idle(ctx context.Context, o options) (string, error) {
	results, err := inTurns(ctx, o, o.connections+16, func(p *pair) (f idleFigures, err error) {
		do := func(on *process, q request) (r reply) {
			if err == nil {
				r, err = on.call(q)
			}
			return r
		}
		// both processes sleep for a time, in the middle of which nothing is asked of them
		used := func() (server, client float64) {
			before := [2]reply{do(p.server, request{Do: "used"}), do(p.client, request{Do: "used"})}
			if err == nil {
				select {
				case <-time.After(o.idle):
				case <-ctx.Done():
					err = ctx.Err()
				}
			}
			t := o.idle.Seconds()
			return (do(p.server, request{Do: "used"}).Value - before[0].Value) / t, (do(p.client, request{Do: "used"}).Value - before[1].Value) / t
		}
		f.alone, _ = used()
		before := do(p.server, request{Do: "memory"}).Memory
		f.before = float64(before.Resident)
		if err == nil {
			f.taken, err = p.hold(o.connections)
		}
		f.heap, f.stacks, f.resident = do(p.server, request{Do: "memory"}).Memory.Grown(before, o.connections)
		f.server, f.client = used()
		do(p.client, request{Do: "release"})
		if err == nil {
			err = p.untilServed(0)
		}
		time.Sleep(closingTime)
		f.left, _, _ = do(p.server, request{Do: "memory"}).Memory.Grown(before, o.connections)
		return f, err
	})
	if err != nil {
		return "", err
	}
	return tableOf(o, fmt.Sprintf("%d idle connections to one process, a goroutine in Read for each, idle for %v; medians of %d rounds; KiB for each connection of the server:", o.connections, o.idle, o.rounds), results, []column[idleFigures]{
		{"connected in, s", "%.2f", func(f idleFigures) float64 { return f.taken }},
		{"heap", "%.2f", func(f idleFigures) float64 { return f.heap / 1024 }},
		{"stacks", "%.2f", func(f idleFigures) float64 { return f.stacks / 1024 }},
		{"resident", "%.2f", func(f idleFigures) float64 { return f.resident / 1024 }},
		{"heap that is left", "%.2f", func(f idleFigures) float64 { return f.left / 1024 }},
		{"MiB resident without connections", "%.1f", func(f idleFigures) float64 { return f.before / (1 << 20) }},
		{"% of a processor: server", "%.2f", func(f idleFigures) float64 { return 100 * f.server }},
		{"client", "%.2f", func(f idleFigures) float64 { return 100 * f.client }},
		{"server without connections", "%.2f", func(f idleFigures) float64 { return 100 * f.alone }},
	}), nil
}

// closingTime is allowed for the end of connections that the server has closed.
const closingTime = 5 * time.Second

// hold has the client make connections that the server reads from, the first of the pair. It
// returns the seconds that the client took, when the server serves all of them: it may accept
// connections later than the client has them.
func (p *pair) hold(connections int) (seconds float64, err error) {
	r, err := p.client.call(request{Do: "hold", Count: connections, Size: readSize})
	if err != nil {
		return 0, err
	}
	return r.Value, p.untilServed(connections)
}

// servePatience ends a wait for connections that the server will never accept or close.
const servePatience = 5 * time.Minute

// untilServed waits until the server reads from so many connections.
func (p *pair) untilServed(connections int) error {
	for limit := time.Now().Add(servePatience); ; time.Sleep(10 * time.Millisecond) {
		r, err := p.server.call(request{Do: "counts"})
		switch {
		case err != nil:
			return err
		case len(r.Values) == connections:
			return nil
		case time.Now().After(limit):
			return fmt.Errorf("the server reads from %d connections after %v, want %d", len(r.Values), servePatience, connections)
		}
	}
}

// rates measures how many bytes each connection of the server receives.
func rates(p *pair, d time.Duration) ([]float64, error) {
	before, err := p.server.call(request{Do: "counts"})
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	time.Sleep(d)
	after, err := p.server.call(request{Do: "counts"})
	if err != nil {
		return nil, err
	}
	if len(before.Values) != len(after.Values) {
		return nil, fmt.Errorf("%d of %d connections have ended", len(before.Values)-len(after.Values), len(before.Values))
	}
	t := time.Since(begin).Seconds()
	list := make([]float64, len(after.Values))
	for i := range list {
		list[i] = (after.Values[i] - before.Values[i]) / t
	}
	return list, nil
}

func sum(list []float64) (s float64) {
	for _, v := range list {
		s += v
	}
	return s
}

// busyFigures are rates in bytes a second.
type busyFigures struct{ total, fairness, least, most float64 }

// busySize is how much busy connections write at a time.
const busySize = 16 << 10

// busy measures connections that all send as much as they can.
func busy(ctx context.Context, o options) (string, error) {
	results, err := inTurns(ctx, o, o.busy+16, func(p *pair) (f busyFigures, err error) {
		if _, err := p.hold(o.busy); err != nil {
			return f, err
		}
		if _, err := p.client.call(request{Do: "write", Size: busySize}); err != nil {
			return f, err
		}
		time.Sleep(o.duration) // buffers grow
		list, err := rates(p, o.duration)
		if err != nil {
			return f, err
		}
		f.total = sum(list)
		f.fairness, f.least = median.Fairness(list)
		f.most = slices.Max(list) / f.total * float64(len(list))
		return f, nil
	})
	if err != nil {
		return "", err
	}
	return tableOf(o, fmt.Sprintf("%d busy connections from one process to another, writes of %d bytes, for %v; medians of %d rounds:", o.busy, busySize, o.duration, o.rounds), results, []column[busyFigures]{
		{"MB/s", "%.0f", func(f busyFigures) float64 { return f.total / 1e6 }},
		{"Jain's index", "%.3f", func(f busyFigures) float64 { return f.fairness }},
		{"slowest, of the mean", "%.2f", func(f busyFigures) float64 { return f.least }},
		{"fastest, of the mean", "%.2f", func(f busyFigures) float64 { return f.most }},
	}), nil
}

// stopped measures busy connections alone, and beside one whose reader has stopped.
func stopped(ctx context.Context, o options) (string, error) {
	type figures struct{ without, with float64 }
	results, err := inTurns(ctx, o, o.beside+16, func(p *pair) (f figures, err error) {
		if _, err := p.hold(o.beside); err != nil {
			return f, err
		}
		for i, q := range []request{{Do: "used"}, {Do: "hold", Count: 1}, {Do: "release", Count: 1}} { // the server reads nothing from the one more
			if _, err := p.client.call(q); err != nil {
				return f, err
			}
			if _, err := p.client.call(request{Do: "write", Size: busySize}); err != nil {
				return f, err
			}
			time.Sleep(o.duration)
			list, err := rates(p, o.duration)
			if err != nil {
				return f, err
			}
			if i == 1 {
				f.with = sum(list)
			} else {
				f.without += sum(list) / 2
			}
		}
		return f, nil
	})
	if err != nil {
		return "", err
	}
	return tableOf(o, fmt.Sprintf("%d busy connections, and one more whose reader has stopped; writes of %d bytes, for %v; medians of %d rounds:", o.beside, busySize, o.duration, o.rounds), results, []column[figures]{
		{"MB/s without it", "%.0f", func(f figures) float64 { return f.without / 1e6 }},
		{"MB/s with it", "%.0f", func(f figures) float64 { return f.with / 1e6 }},
		{"with it, relative", "%.2f", func(f figures) float64 { return f.with / f.without }},
	}), nil
}
