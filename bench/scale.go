package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/footprint"
	"github.com/verbena-rdma/verbena/bench/internal/median"
	"github.com/verbena-rdma/verbena/internal/processor"
	"github.com/verbena-rdma/verbena/rdma"
)

// How many writes are in flight on all connections together, and how many consecutive ones are
// on one connection.
const (
	scaleWindow = 512
	scaleRun    = 64
	// idleSettle is the wait before the processor time of idle connections is measured:
	// keepalives have begun by then.
	idleSettle = 5 * time.Second
)

// scaleSteps returns the numbers of connections to measure, up to most.
func scaleSteps(most int) []int {
	steps := slices.DeleteFunc([]int{1, 100, 1000, 10000}, func(n int) bool { return n >= most })
	return append(steps, most)
}

// scaleFigure is a column of the table.
type scaleFigure struct {
	name, unit string
	of         func(f *scaleFigures) float64
}

// scaleFigures are the results for one number of connections.
type scaleFigures struct {
	byDescriptor, byAddress time.Duration // until all are Ready at both ends
	closing                 time.Duration // of one end
	heap, resident          float64       // bytes per connection that has not been used
	heapCM, residentCM      float64       // the same for an accepted connection, in the second process
	idleCM                  float64       // processors that the second process uses meanwhile
	heapUsed, residentUsed  float64       // bytes per connection that has written
	turns, runs, all        rate
	fairness, least         float64       // Jain's index; the fewest writes of a connection, divided by the mean
	median, tail            time.Duration // half a round trip of one connection
	idle                    float64       // processors used while idle
}

var scaleTables = [][]scaleFigure{{
	{"by descriptor", "ms", func(f *scaleFigures) float64 { return f.byDescriptor.Seconds() * 1e3 }},
	{"by address", "ms", func(f *scaleFigures) float64 { return f.byAddress.Seconds() * 1e3 }},
	{"to close", "ms", func(f *scaleFigures) float64 { return f.closing.Seconds() * 1e3 }},
	{"heap", "KiB", func(f *scaleFigures) float64 { return f.heap / 1024 }},
	{"resident", "KiB", func(f *scaleFigures) float64 { return f.resident / 1024 }},
	{"accepted: heap", "KiB", func(f *scaleFigures) float64 { return f.heapCM / 1024 }},
	{"resident", "KiB", func(f *scaleFigures) float64 { return f.residentCM / 1024 }},
	{"idle", "%", func(f *scaleFigures) float64 { return 100 * f.idleCM }},
	{"used: heap", "KiB", func(f *scaleFigures) float64 { return f.heapUsed / 1024 }},
	{"resident", "KiB", func(f *scaleFigures) float64 { return f.residentUsed / 1024 }},
	{"idle", "%", func(f *scaleFigures) float64 { return 100 * f.idle }},
}, {
	{"in turn", "M/s", func(f *scaleFigures) float64 { return f.turns.perSecond / 1e6 }},
	{"processor", "ns", func(f *scaleFigures) float64 { return float64(f.turns.used) }},
	{"in runs", "M/s", func(f *scaleFigures) float64 { return f.runs.perSecond / 1e6 }},
	{"processor", "ns", func(f *scaleFigures) float64 { return float64(f.runs.used) }},
	{"all at once", "M/s", func(f *scaleFigures) float64 { return f.all.perSecond / 1e6 }},
	{"processor", "ns", func(f *scaleFigures) float64 { return float64(f.all.used) }},
	{"Jain", "", func(f *scaleFigures) float64 { return f.fairness }},
	{"least", "", func(f *scaleFigures) float64 { return f.least }},
	{"one: median", "µs", func(f *scaleFigures) float64 { return float64(f.median.Nanoseconds()) / 1e3 }},
	{"99 %", "µs", func(f *scaleFigures) float64 { return float64(f.tail.Nanoseconds()) / 1e3 }},
}}

// measureScale shows the cost of connections as their number grows.
func measureScale(o options) (string, error) {
	steps := scaleSteps(o.connections)
	figures := make([][]scaleFigures, len(steps))
	for range o.rounds {
		for i, n := range steps {
			o := o
			o.connections = n
			f, err := scaleOf(o)
			if err != nil {
				return "", fmt.Errorf("%d connections: %w", n, err)
			}
			figures[i] = append(figures[i], f)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "connections to another process, medians of %d; %d writes of %d bytes under way: one on each connection in turn, in runs of %d, and on all connections at once; processor time is that of both processes for each",
		o.rounds, scaleWindow, pingSize, scaleRun)
	for _, columns := range scaleTables {
		fmt.Fprintf(&b, "\n            %11s", "connections")
		for _, c := range columns {
			fmt.Fprintf(&b, " %14s", strings.TrimSpace(c.name+" "+c.unit))
		}
		for i, n := range steps {
			fmt.Fprintf(&b, "\n            %11d", n)
			for _, c := range columns {
				var values []float64
				for r := range figures[i] {
					values = append(values, c.of(&figures[i][r]))
				}
				fmt.Fprintf(&b, " %14.4g", median.Of(values))
			}
		}
	}
	return b.String(), nil
}

// scaleOf measures o.connections connections: first dialled ones, for the time that dialling
// takes, then others for everything else.
func scaleOf(o options) (f scaleFigures, err error) {
	dialled := o
	dialled.only = byDial
	err = withMany(dialled, func(m *many, hello manyMessage) (err error) {
		if f.byAddress, err = m.dial(hello.Listener, o.connections); err != nil {
			return err
		}
		if f.heapCM, f.residentCM, err = m.peerFootprint(); err != nil {
			return err
		}
		f.idleCM, err = m.peerIdle(min(idleSettle, 10*o.duration), o.duration)
		return err
	})
	if err != nil {
		return f, fmt.Errorf("by connection manager: %w", err)
	}
	return f, withMany(o, func(m *many, hello manyMessage) (err error) {
		if f.byDescriptor, err = m.exchange(o.connections); err != nil {
			return err
		}
		f.heap, _, f.resident = footprint.Measure().Grown(m.baseline, o.connections)
		if f.idle, err = m.idle(min(idleSettle, 10*o.duration), o.duration); err != nil {
			return err
		}
		if f.turns, err = m.inTurns(o.duration, 1); err != nil {
			return err
		}
		if f.runs, err = m.inTurns(o.duration, scaleRun); err != nil {
			return err
		}
		if f.all, f.fairness, f.least, err = m.atOnce(o.duration); err != nil {
			return err
		}
		f.heapUsed, _, f.residentUsed = footprint.Measure().Grown(m.baseline, o.connections)
		if f.median, f.tail, err = m.roundTrip(o.duration); err != nil {
			return err
		}
		start := time.Now()
		err = m.stop()
		f.closing = time.Since(start)
		return err
	})
}

// withMany starts the second process, waits for its first message, and calls part.
func withMany(o options, part func(m *many, hello manyMessage) error) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	words := append(strings.Fields(o.prefix), self, "scale", "-serve", "-d", o.device, "-only", o.only,
		"-connections", fmt.Sprint(o.connections), "-receives", fmt.Sprint(o.receives), fmt.Sprintf("-counters=%v", o.counters))
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	// This pipe is our own: Wait closes the command's pipes, and the output is read meanwhile.
	out, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	cmd.Stdout = theirs
	if err := cmd.Start(); err != nil {
		return errors.Join(err, theirs.Close())
	}
	if err := theirs.Close(); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, in.Close())
		if e := cmd.Wait(); e != nil {
			err = errors.Join(err, fmt.Errorf("the second process: %w", e))
		}
	}()
	m, err := newMany(o, max(o.connections, scaleWindow)+pingTasks, out, in)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	hello, err := m.receive()
	if err == nil {
		err = m.memory(hello.Memory)
	}
	if err != nil {
		return err
	}
	return part(m, hello)
}

// firstMessage returns the first message of the first process.
func (m *many) firstMessage() (w manyMessage, err error) {
	w.Memory, err = m.local.Export(m.dev)
	return w, err
}

// dial makes n connections by connection manager, and returns the time taken.
func (m *many) dial(addr string, n int) (time.Duration, error) {
	start := time.Now()
	w, err := m.firstMessage()
	if err == nil {
		err = m.out.Encode(w)
	}
	if err != nil {
		return 0, err
	}
	for range n {
		conn, err := m.rdma.Dial(addr, rdma.DialConfig{})
		if err != nil {
			return 0, err
		}
		m.conns = append(m.conns, conn)
	}
	return m.bothReady(start, n)
}

// exchange makes n connections by descriptors, and returns the time taken.
func (m *many) exchange(n int) (time.Duration, error) {
	start := time.Now()
	w, err := m.firstMessage()
	if err == nil {
		w.Connections, err = m.export(n)
	}
	if err == nil {
		err = m.out.Encode(w)
	}
	if err == nil {
		w, err = m.receive()
	}
	if err == nil {
		err = m.connectAll(w.Connections)
	}
	if err != nil {
		return 0, err
	}
	return m.bothReady(start, n)
}

func (m *many) bothReady(start time.Time, n int) (time.Duration, error) {
	if err := m.untilReady(n); err != nil {
		return 0, err
	}
	w, err := m.receive()
	if err == nil && !w.Ready {
		err = errors.New("expected the second process to report that it is ready, got another message")
	}
	return time.Since(start), err
}

// idle returns how many processors this end uses while idle, measured after settle.
func (m *many) idle(settle, d time.Duration) (processors float64, err error) {
	for _, t := range []time.Duration{settle, d} {
		begin, before := time.Now(), processor.Time()
		if err := m.sleep(begin.Add(t)); err != nil {
			return 0, err
		}
		processors = (processor.Time() - before).Seconds() / time.Since(begin).Seconds()
	}
	return processors, nil
}

// peerFootprint returns how many bytes each connection takes in the second process.
func (m *many) peerFootprint() (heap, resident float64, err error) {
	if err := m.out.Encode(manyMessage{Footprint: true}); err != nil {
		return 0, 0, err
	}
	w, err := m.receiveAsleep()
	return w.Heap, w.Resident, err
}

// peerIdle is idle of the second process, while this end is idle too.
func (m *many) peerIdle(settle, d time.Duration) (processors float64, err error) {
	for _, t := range []time.Duration{settle, d} {
		before, err := m.peerUsed()
		begin := time.Now()
		if err == nil {
			err = m.sleep(begin.Add(t))
		}
		if err != nil {
			return 0, err
		}
		after, err := m.peerUsed()
		if err != nil {
			return 0, err
		}
		processors = (after - before).Seconds() / time.Since(begin).Seconds()
	}
	return processors, nil
}

// peerUsed returns the processor time that the second process has used.
func (m *many) peerUsed() (time.Duration, error) {
	if err := m.out.Encode(manyMessage{Ask: true}); err != nil {
		return 0, err
	}
	w, err := m.receiveAsleep()
	return time.Duration(w.Used), err
}

// inTurns keeps scaleWindow writes in flight: run of them on one connection, then on the next.
// It returns the completions per second.
func (m *many) inTurns(d time.Duration, run int) (rate, error) {
	tasks, err := m.tasks(scaleWindow, pingSize)
	if err != nil {
		return rate{}, err
	}
	next, left := 0, run
	m.onComplete = func(t *rdma.Task) {
		if left == 0 {
			next, left = (next+1)%len(m.conns), run
		}
		left--
		err := t.SetConnection(m.conns[next])
		if err == nil {
			err = t.Submit()
		}
		m.rdma.Fail(err)
	}
	for _, t := range tasks {
		m.onComplete(t)
	}
	r, err := m.rate(d)
	return r, errors.Join(err, m.drain(tasks))
}

// rate is the result of counting completed tasks.
type rate struct {
	perSecond float64
	used      time.Duration // processor time of each task, in both processes
}

// rate measures the tasks in flight, after a warm-up.
func (m *many) rate(d time.Duration) (r rate, err error) {
	if err := warmedUp(m.endpoint, d); err != nil {
		return r, err
	}
	return m.rateNow(d)
}

func (m *many) rateNow(d time.Duration) (r rate, err error) {
	before, err := m.bothUsed()
	if err != nil {
		return r, err
	}
	first := m.completed
	n, elapsed, err := measureNow(m.endpoint, d)
	if err != nil {
		return r, err
	}
	after, err := m.bothUsed()
	r.perSecond = float64(n) / elapsed.Seconds()
	r.used = (after - before) / time.Duration(max(m.completed-first, 1))
	return r, err
}

// bothUsed returns the processor time that both processes have used.
func (m *many) bothUsed() (time.Duration, error) {
	if err := m.out.Encode(manyMessage{Ask: true}); err != nil {
		return 0, err
	}
	w, err := m.receive()
	return processor.Time() + time.Duration(w.Used), err
}

// atOnce keeps writes in flight on all connections, equally many on each. It returns the
// completions per second and the fairness between connections: Jain's index, and the smallest
// share divided by the mean.
func (m *many) atOnce(d time.Duration) (r rate, jain, least float64, err error) {
	each := max(scaleWindow/len(m.conns), 1)
	tasks, err := m.tasks(each*len(m.conns), pingSize)
	if err != nil {
		return r, 0, 0, err
	}
	counts := make([]int, len(m.conns))
	m.onComplete = func(t *rdma.Task) {
		*t.UserData().(*int)++
		m.rdma.Fail(t.Submit())
	}
	for i, t := range tasks {
		t.SetUserData(&counts[i/each])
		if err := t.SetConnection(m.conns[i/each]); err != nil {
			return r, 0, 0, err
		}
		if err := t.Submit(); err != nil {
			return r, 0, 0, err
		}
	}
	if err = warmedUp(m.endpoint, d); err != nil {
		return r, 0, 0, err
	}
	before := slices.Clone(counts)
	r, err = m.rateNow(d)
	shares := make([]float64, len(counts))
	for i := range counts {
		shares[i] = float64(counts[i] - before[i])
	}
	jain, least = median.Fairness(shares)
	return r, jain, least, errors.Join(err, m.drain(tasks))
}

// drain waits for the tasks, and frees them.
func (m *many) drain(tasks []*rdma.Task) error {
	m.onComplete = nil
	for _, t := range tasks {
		for t.InFlight() {
			if err := m.progress(); err != nil {
				return err
			}
		}
	}
	return rdma.FreeAll(tasks)
}

// roundTrip writes a number back and forth on one connection. It returns the median and the
// 99th percentile of half the round trip.
func (m *many) roundTrip(d time.Duration) (median, tail time.Duration, err error) {
	if err := m.out.Encode(manyMessage{Echo: true}); err != nil {
		return 0, 0, err
	}
	p, err := newPinger(m.endpoint)
	if err != nil {
		return 0, 0, err
	}
	samples, err := p.pingPong(d)
	if err != nil {
		return 0, 0, err
	}
	if err := m.out.Encode(manyMessage{}); err != nil {
		return 0, 0, err
	}
	slices.Sort(samples)
	return samples[len(samples)/2], samples[len(samples)*99/100], nil
}
