package pe_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errFlushed = fmt.Errorf("job: %w", pe.ErrFlushed)

// job is a kind of task: its callback gets nil, or the error it failed with.
type job struct {
	pe.Task
	id   int
	done func(*job, error)
}

func jobTask(j *job) *pe.Task { return &j.Task }

type result struct {
	job *job
	err error
}

// device is a context whose work completes when the test says so. Completions
// may come from any goroutine.
type device struct {
	*pe.Core
	ctl  backend.Control
	jobs *pe.Pool[job]

	// What the backend does when it is called.
	slowStart  bool  // Start leaves it Starting
	startErr   error // Start fails
	slowStop   bool  // Stopped is called by the test
	budget     int   // completions handled by one Progress; 0: all
	onStart    func()
	onProgress func()

	posted   []*job     // in flight, at the device
	held     []*job     // submitted with Aggregate
	mu       sync.Mutex // guards ready and armed
	ready    []result   // completed, not reported
	armed    bool
	stopping bool

	dropped  []*job   // taken back by Close
	trace    []string // calls to the backend, except Progress and Arm
	depth    int
	nested   bool // calls to the backend were nested
	passes   int
	acquired bool
	finished bool // it has called Stopped
}

// deviceBackend keeps the methods of the backend apart from those of the Core.
type deviceBackend device

func newDevice(t testing.TB, tasks int) *device {
	t.Helper()
	return newNamedDevice(t, "dev", tasks)
}

func newNamedDevice(t testing.TB, name string, tasks int) *device {
	t.Helper()
	d := &device{}
	d.Core, d.ctl = backend.New(name, (*deviceBackend)(d))
	var err error
	d.jobs, err = backend.NewPool(d.ctl, "jobs", tasks, jobTask, nil, d.drop)
	require.NoError(t, err)
	return d
}

func (d *device) drop(j *job) { d.dropped = append(d.dropped, j) }

// submit posts a job.
func (d *device) submit(j *job, flags pe.SubmitFlags) error {
	if err := d.ctl.Begin(&j.Task, "submit a job"); err != nil {
		return err
	}
	d.held = append(d.held, j)
	if flags&pe.Aggregate == 0 {
		d.flush()
	} else {
		d.ctl.Wake()
	}
	return nil
}

func (d *device) flush() {
	d.posted = append(d.posted, d.held...)
	clear(d.held)
	d.held = d.held[:0]
}

// complete ends the i-th of the posted jobs.
func (d *device) complete(i int, err error) {
	j := d.posted[i]
	d.posted = slices.Delete(d.posted, i, i+1)
	d.push(j, err)
}

// push reports a job as completed. Any goroutine may call it. As a completion
// queue does, it wakes the engine only if it was armed, and once.
func (d *device) push(j *job, err error) {
	d.mu.Lock()
	d.ready = append(d.ready, result{j, err})
	armed := d.armed
	d.armed = false
	d.mu.Unlock()
	if armed {
		d.ctl.Wake()
	}
}

func (b *deviceBackend) call(name string) func() {
	if name != "" {
		b.trace = append(b.trace, name)
	}
	if b.depth > 0 {
		b.nested = true
	}
	b.depth++
	return func() { b.depth-- }
}

func (b *deviceBackend) Start() (bool, error) {
	defer b.call("start")()
	if b.onStart != nil {
		b.onStart()
	}
	if b.startErr != nil {
		return false, b.startErr
	}
	b.acquired, b.stopping, b.finished = true, false, false
	return !b.slowStart, nil
}

func (b *deviceBackend) Progress() int {
	defer b.call("")()
	b.passes++
	if b.onProgress != nil {
		b.onProgress()
	}
	(*device)(b).flush()
	n := 0
	for b.budget == 0 || n < b.budget {
		b.mu.Lock()
		if len(b.ready) == 0 {
			b.mu.Unlock()
			break
		}
		r := b.ready[0]
		b.ready = slices.Delete(b.ready, 0, 1)
		b.mu.Unlock()
		n++
		b.ctl.End(&r.job.Task)
		r.job.done(r.job, r.err)
	}
	b.finish()
	return n
}

func (b *deviceBackend) Arm() bool {
	defer b.call("")()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armed = len(b.ready) == 0 && len(b.held) == 0
	return b.armed
}

func (b *deviceBackend) Stop() {
	defer b.call("stop")()
	b.stopping = true
	d := (*device)(b)
	d.flush()
	for len(d.posted) > 0 {
		d.complete(0, errFlushed)
	}
	b.finish()
}

func (b *deviceBackend) Idle() {
	defer b.call("idle")()
	b.acquired = false
}

// finish says that the device has stopped, once it has.
func (b *deviceBackend) finish() {
	if b.stopping && !b.slowStop && b.Core.InFlight() == 0 {
		b.finished = true
		b.ctl.Stopped()
	}
}

// changes records the changes of state that a context reports.
type changes [][2]pe.State

func (d *device) record() *changes {
	var list changes
	d.OnStateChange(func(prev, next pe.State) { list = append(list, [2]pe.State{prev, next}) })
	return &list
}

func newEngine(t testing.TB, cfg pe.Config) *pe.Engine {
	t.Helper()
	return pe.New(cfg)
}

// connected makes an engine with a device on it.
func connected(t testing.TB, tasks int) (*pe.Engine, *device) {
	t.Helper()
	e, d := newEngine(t, pe.Config{}), newDevice(t, tasks)
	require.NoError(t, e.Connect(d))
	return e, d
}

// quiesce drives the engine until there is nothing to do.
func quiesce(t testing.TB, e *pe.Engine) int {
	t.Helper()
	total := 0
	for range 100_000 {
		n, err := e.Progress()
		require.NoError(t, err)
		if n == 0 {
			return total
		}
		total += n
	}
	require.Fail(t, "the engine finds no end")
	return 0
}

// free is the callback that only frees the job.
func (d *device) free(t testing.TB) func(*job, error) {
	return func(j *job, _ error) { require.NoError(t, d.jobs.Free(j)) }
}
