package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/measure"
	"github.com/verbena-rdma/verbena/bench/internal/stats"
	"github.com/verbena-rdma/verbena/internal/process"
	"github.com/verbena-rdma/verbena/internal/processor"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/test/footprint"
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

// scaleScenes shows the cost of connections as their number grows.
func scaleScenes(o options) ([]*measure.Scene, error) {
	s := &measure.Scene{Title: fmt.Sprintf("Connections to another process, on %s; %d writes of %d bytes under way: one on each connection in turn, in runs of %d, and on all connections at once; processor time is that of both processes for each",
		o.device, scaleWindow, pingSize, scaleRun)}
	for _, n := range scaleSteps(o.connections) {
		o := o
		o.connections = n
		s.Contenders = append(s.Contenders, measure.Contender{Name: fmt.Sprint(n), Own: true, Measurements: []measure.Measurement{
			{Name: "connections by address", Do: func(context.Context) ([]measure.Value, error) { return dialled(o) }},
			{Name: "connections by descriptor", Do: func(context.Context) ([]measure.Value, error) { return exchanged(o) }},
		}})
	}
	return []*measure.Scene{s}, nil
}

// values collects the values of a measurement.
type values []measure.Value

func (v *values) less(title, unit string, of float64) {
	*v = append(*v, measure.Value{Row: measure.Row{Title: title, Unit: unit, Less: true}, Of: of})
}

func (v *values) more(title, unit string, of float64) {
	*v = append(*v, measure.Value{Row: measure.Row{Title: title, Unit: unit}, Of: of})
}

// memory adds the memory of a connection.
func (v *values) memory(what string, heap, resident float64) {
	v.less(what+": heap", "KiB", heap/1024)
	v.less(what+": resident", "KiB", resident/1024)
}

// rate adds a rate, and the processor time of each write.
func (v *values) rate(what string, r rate) {
	v.more(what, "M/s", r.perSecond/1e6)
	v.less(what+": processor time", "ns", float64(r.used))
}

// dialled measures connections made by the connection manager.
func dialled(o options) (v values, err error) {
	o.only = byDial
	return v, withMany(o, func(m *many, hello manyMessage) error {
		took, err := m.connect(hello.Listener, o.connections)
		if err != nil {
			return err
		}
		v.less("set up by address", "ms", took.Seconds()*1e3)
		accepted, err := m.ask(manyMessage{Footprint: true}, m.receiveAsleep)
		if err != nil {
			return err
		}
		v.memory("accepted", accepted.Heap, accepted.Resident)
		used, err := m.idle(m.peerUsed, min(idleSettle, 10*o.duration), o.duration)
		v.less("accepted, idle: processors", "%", 100*used)
		return err
	})
}

// exchanged measures connections made by descriptors.
func exchanged(o options) (v values, err error) {
	return v, withMany(o, func(m *many, hello manyMessage) error {
		took, err := m.connect("", o.connections)
		if err != nil {
			return err
		}
		v.less("set up by descriptor", "ms", took.Seconds()*1e3)
		heap, resident := footprint.Measure().Grown(m.baseline, o.connections)
		v.memory("unused", heap, resident)
		used, err := m.idle(ownUsed, min(idleSettle, 10*o.duration), o.duration)
		if err != nil {
			return err
		}
		v.less("idle: processors", "%", 100*used)
		for _, run := range []struct {
			name   string
			length int
		}{{"writes in turn", 1}, {"writes in runs", scaleRun}} {
			r, err := m.inTurns(o.duration, run.length)
			if err != nil {
				return err
			}
			v.rate(run.name, r)
		}
		r, jain, least, err := m.atOnce(o.duration)
		if err != nil {
			return err
		}
		v.rate("writes at once", r)
		v.more("fairness (Jain's index)", "", jain)
		v.more("fewest writes of a connection, of the mean", "", least)
		heap, resident = footprint.Measure().Grown(m.baseline, o.connections)
		v.memory("used", heap, resident)
		median, tail, err := m.roundTrip(o.duration)
		if err != nil {
			return err
		}
		v.less("half a round trip, median", "µs", float64(median.Nanoseconds())/1e3)
		v.less("half a round trip, 99 %", "µs", float64(tail.Nanoseconds())/1e3)
		start := time.Now()
		err = m.stop()
		v.less("to close", "ms", time.Since(start).Seconds()*1e3)
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
	second, err := process.Start(context.Background(), process.Program{Args: words, Stderr: os.Stderr, In: true, Out: true})
	if err != nil {
		return err
	}
	defer func() {
		if e := second.Close(); e != nil {
			err = errors.Join(err, fmt.Errorf("the second process: %w", e))
		}
	}()
	m, err := newMany(o, max(o.connections, scaleWindow)+pingTasks, second.Out, second.In)
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

// connect makes n connections, by address if the second process listens, and otherwise by
// descriptors. It returns the time taken.
func (m *many) connect(listener string, n int) (took time.Duration, err error) {
	start := time.Now()
	var w manyMessage
	if w.Memory, err = m.local.Export(m.dev); err == nil && listener == "" {
		w.Connections, err = m.export(n)
	}
	if err == nil {
		err = m.out.Encode(w)
	}
	if err == nil && listener == "" {
		if w, err = m.receive(); err == nil {
			err = m.connectAll(w.Connections)
		}
	}
	for i := 0; i < n && err == nil && listener != ""; i++ {
		var conn *rdma.Connection
		conn, err = m.rdma.Dial(listener, rdma.DialConfig{})
		m.conns = append(m.conns, conn)
	}
	if err == nil {
		err = m.untilReady(n)
	}
	if err != nil {
		return 0, err
	}
	if w, err = m.receive(); err == nil && !w.Ready {
		err = errors.New("expected the second process to report that it is ready, got another message")
	}
	return time.Since(start), err
}

// idle returns how many processors a process uses while both are idle, measured after settle. used
// returns its processor time.
func (m *many) idle(used func() (time.Duration, error), settle, d time.Duration) (processors float64, err error) {
	for _, t := range []time.Duration{settle, d} {
		before, err := used()
		begin := time.Now()
		if err == nil {
			err = m.sleep(begin.Add(t))
		}
		if err != nil {
			return 0, err
		}
		after, err := used()
		if err != nil {
			return 0, err
		}
		processors = (after - before).Seconds() / time.Since(begin).Seconds()
	}
	return processors, nil
}

func ownUsed() (time.Duration, error) { return processor.Time(), nil }

// ask asks the second process a question, and waits for the answer: asleep, as an idle program does,
// or polling.
func (m *many) ask(question manyMessage, wait func() (manyMessage, error)) (manyMessage, error) {
	if err := m.out.Encode(question); err != nil {
		return manyMessage{}, err
	}
	return wait()
}

// peerUsed returns the processor time that the second process has used.
func (m *many) peerUsed() (time.Duration, error) {
	w, err := m.ask(manyMessage{Ask: true}, m.receiveAsleep)
	return time.Duration(w.Used), err
}

// bothUsed returns the processor time that both processes have used.
func (m *many) bothUsed() (time.Duration, error) {
	w, err := m.ask(manyMessage{Ask: true}, m.receive)
	return processor.Time() + time.Duration(w.Used), err
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
	if err := m.warmUp(d); err != nil {
		return rate{}, err
	}
	r, err := m.rate(d)
	return r, errors.Join(err, m.drain(tasks))
}

// rate is the result of counting completed tasks.
type rate struct {
	perSecond float64
	used      time.Duration // processor time of each task, in both processes
}

// warmUp drives the engine before a measurement of length d.
func (m *many) warmUp(d time.Duration) error {
	for begin := time.Now(); time.Since(begin) < min(warmUp, 10*d); {
		if err := m.progress(); err != nil {
			return err
		}
	}
	return nil
}

// rate measures the tasks in flight for the time d.
func (m *many) rate(d time.Duration) (r rate, err error) {
	before, err := m.bothUsed()
	if err != nil {
		return r, err
	}
	begin, first, elapsed := time.Now(), m.completed, time.Duration(0)
	for ; elapsed < d; elapsed = time.Since(begin) {
		if err := m.progress(); err != nil {
			return r, err
		}
	}
	r.perSecond = float64(m.completed-first) / elapsed.Seconds()
	after, err := m.bothUsed() // which completes more
	r.used = (after - before) / time.Duration(max(m.completed-first, 1))
	return r, err
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
	if err = m.warmUp(d); err != nil {
		return r, 0, 0, err
	}
	before := slices.Clone(counts)
	r, err = m.rate(d)
	shares := make([]float64, len(counts))
	for i := range counts {
		shares[i] = float64(counts[i] - before[i])
	}
	jain, least = stats.Fairness(shares)
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
	p, err := newPinger(m)
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
