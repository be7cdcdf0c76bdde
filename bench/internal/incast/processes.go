package incast

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/subprocess"
	"github.com/verbena-rdma/verbena/bench/internal/veth"
	"github.com/verbena-rdma/verbena/descriptor"
)

// report is the result of another process.
type report struct {
	Bytes    []int // moved by each connection; empty if the peers move the data
	Failed   int   // connections
	Counters map[string]uint64
}

// process is one of the child processes, with the pipes to it.
type process struct {
	*subprocess.Process
	scan    *descriptor.Scanner
	reports *json.Decoder
	pipe    *os.File
	conns   int
	active  bool // it moves the data
}

// start starts a process on a host.
func start(ctx context.Context, o options, prefix []string, role, device string, conns int) (*process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	p, err := subprocess.Start(ctx, prefix, []string{"incast", "-child", role, "-d", device,
		"-senders", fmt.Sprint(conns), "-processes", "1", "-op", o.operation, "-size", fmt.Sprint(o.size), "-window", fmt.Sprint(o.window), "-t", o.duration.String()}, w)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &process{
		Process: p, scan: descriptor.NewScanner(p.Out), pipe: r, reports: json.NewDecoder(r), conns: conns,
		active: (role == "receiver") == (o.operation == "read"),
	}, nil
}

// offers reads the descriptors of the process's connections and of its memory.
func (p *process) offers() (conns [][]byte, memory []byte, err error) {
	for range p.conns + 1 {
		kind, b, err := p.scan.Next()
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("read the descriptors of another process: %w", err)
		case kind == descriptor.MemoryMap:
			memory = b
		default:
			conns = append(conns, b)
		}
	}
	return conns, memory, nil
}

// rank returns the position of the process in the order of ending.
func (p *process) rank() int {
	if p.active {
		return 0
	}
	return 1
}

// stop ends the process, and returns its last report.
func (p *process) stop() (r report, err error) {
	err = p.In.Close()
	if e := p.reports.Decode(&r); err == nil {
		err = e
	}
	if e := p.Wait(); e != nil {
		err = e
	}
	return r, errors.Join(err, p.pipe.Close())
}

// kill kills the process after a failure.
func (p *process) kill() {
	p.Kill()
	_ = p.pipe.Close()
}

// measure measures one variant once, with all senders.
func measure(ctx context.Context, o options, l *veth.Link, variant string) (f figures, err error) {
	before, err := l.Dropped()
	if err != nil {
		return f, err
	}
	var all []*process // the receiver first
	defer func() {
		if err != nil {
			for _, p := range all {
				p.kill()
			}
		}
	}()
	add := func(host int, role, address string, conns int) error {
		p, err := start(ctx, o, l.Run(host), role, "soft-"+address+"?"+variant, conns)
		if err == nil {
			all = append(all, p)
		}
		return err
	}
	if err := add(1, "receiver", veth.Addresses[1], o.senders); err != nil {
		return f, err
	}
	left := o.senders
	for i := range o.processes {
		n := left / (o.processes - i)
		left -= n
		if err := add(0, "sender", fmt.Sprintf("%s:%d", veth.Addresses[0], 5000+i), n); err != nil {
			return f, err
		}
	}
	if err := exchangeDescriptors(all); err != nil {
		return f, err
	}
	var bytes []int
	for _, p := range all {
		if !p.active {
			continue
		}
		var r report
		if err := p.reports.Decode(&r); err != nil {
			return f, fmt.Errorf("read the results of another process: %w", err)
		}
		bytes = append(bytes, r.Bytes...)
		f.failed += r.Failed
	}
	// Active processes end first: if their peers ended first, their tasks would fail.
	processes := slices.Clone(all)
	slices.SortStableFunc(processes, func(p, q *process) int { return cmp.Compare(p.rank(), q.rank()) })
	all = nil
	f.counters = make(map[string]uint64)
	for _, p := range processes {
		r, e := p.stop()
		if err == nil {
			err = e
		}
		for name, n := range r.Counters {
			f.counters[name] += n
		}
	}
	if err != nil {
		return f, err
	}
	after, err := l.Dropped()
	f.dropped = after - before
	f.rate, f.fairness = shares(bytes, o.duration)
	return f, err
}

// exchangeDescriptors exchanges the descriptors of the receiver and the senders.
func exchangeDescriptors(all []*process) error {
	conns, memory, err := all[0].offers()
	if err != nil {
		return err
	}
	for _, p := range all[1:] {
		theirs, theirMemory, err := p.offers()
		if err != nil {
			return err
		}
		for i, c := range theirs {
			if _, err := io.WriteString(all[0].In, descriptor.Armor(c)+descriptor.Armor(theirMemory)); err != nil {
				return err
			}
			if _, err := io.WriteString(p.In, descriptor.Armor(conns[i])+descriptor.Armor(memory)); err != nil {
				return err
			}
		}
		conns = conns[len(theirs):]
	}
	return nil
}

// shares returns the rate and the fairness of what the connections have moved.
func shares(bytes []int, d time.Duration) (rate, fairness float64) {
	total, squares := 0.0, 0.0
	for _, b := range bytes {
		total += float64(b)
		squares += float64(b) * float64(b)
	}
	if squares == 0 {
		return 0, 0
	}
	return total / d.Seconds(), total * total / (float64(len(bytes)) * squares)
}
