package lane_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/internal/errs"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// device is a queue pair and its completion queue: it takes what is posted, and
// completes it on command.
type device struct {
	qp
	depth  int
	posted []verbs.SendWR
	done   []verbs.WC
	broken error
}

// qp is the queue pair's side of a device.
type qp struct {
	verbs.QP
	d             *device
	state         verbs.QPState
	refuse        error // of Modify
	takes         int   // how many more are taken; negative: all
	noCompletions bool  // Modify says yes, and does nothing
	destroy       error // of Close
	closed        bool
}

// pd is its protection domain.
type pd struct {
	verbs.PD
	d *device
}

// cq is its completion queue's.
type cq struct {
	verbs.CQ
	d *device
}

func (c cq) Poll(wcs []verbs.WC) (int, error) {
	n := copy(wcs, c.d.done)
	c.d.done = c.d.done[n:]
	return n, c.d.broken
}

func newDevice() *device {
	d := &device{}
	d.qp.d, d.takes = d, -1
	return d
}

func (p pd) Device() verbs.Device { return nil }

func (p pd) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	p.d.depth = init.MaxSendWR
	return &p.d.qp, nil
}

func (q *qp) Num() uint32 { return 17 }

func (q *qp) Modify(a verbs.QPAttr, _ verbs.QPAttrMask) error {
	if q.refuse != nil {
		return q.refuse
	}
	if q.noCompletions {
		return nil
	}
	q.state = a.State
	if a.State == verbs.QPError {
		q.d.complete(len(q.d.posted), verbs.StatusFlushed)
	}
	return nil
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) { return len(wrs), nil }

func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	for i := range wrs {
		if q.takes == 0 {
			return i, errors.New("refused")
		}
		q.takes--
		q.d.posted = append(q.d.posted, wrs[i])
	}
	return len(wrs), nil
}

func (q *qp) Close() error {
	q.closed = q.destroy == nil
	return q.destroy
}

// complete ends the n oldest requests: those not signaled without a completion,
// unless they fail.
func (d *device) complete(n int, status verbs.Status) {
	for _, wr := range d.posted[:n] {
		if status != verbs.StatusSuccess || wr.Flags&verbs.FlagSignaled != 0 {
			d.done = append(d.done, verbs.WC{ID: wr.ID, Status: status})
		}
	}
	d.posted = d.posted[n:]
}

// end is what became of a request.
type end struct {
	number int
	status verbs.Status
}

// state is what became of the queue pair and of its memory when a request ended.
type state struct{ destroyed, kept bool }

// fixture is a group with one lane.
type fixture struct {
	*device
	group  lane.Group
	lane   *lane.Lane
	ends   []end
	states []state // beside them
	failed error
	panics bool // the next callback does
}

func newFixture(t require.TestingT, depth int) *fixture {
	f := &fixture{device: newDevice()}
	f.group.Attach(cq{d: f.device}, math.MaxInt, func(*verbs.WC) {})
	var err error
	f.lane, err = f.group.Open(pd{d: f.device}, verbs.QPInit{}, depth, f)
	require.NoError(t, err)
	require.Equal(t, depth, f.depth)
	require.NoError(t, f.lane.Initialize(1, 0, 0))
	require.NoError(t, f.lane.Connect(verbs.QPAttr{}))
	require.Equal(t, verbs.QPReadyToSend, f.state)
	return f
}

func (f *fixture) PostFailed(err error) { f.failed = err }

// job is a request that writes down its end.
type job struct {
	lane.Request
	f      *fixture
	number int
}

func (j *job) Completed(status verbs.Status, _ uint32) {
	j.f.ends = append(j.f.ends, end{j.number, status})
	j.f.states = append(j.f.states, state{j.f.closed, errors.Is(j.Kept(), errs.ErrMemoryKept)})
	if j.f.panics {
		j.f.panics = false
		panic("mine")
	}
}

func (f *fixture) push(number int) *job {
	j := &job{f: f, number: number}
	f.group.Add(&j.Request, j)
	f.lane.Push(&j.Request)
	return j
}

func (f *fixture) poll(t require.TestingT) int {
	n, err := f.group.Poll()
	require.NoError(t, err)
	return n
}

// What does not fit waits, and follows in order when there is room.
func TestRequestsWaitInOrder(t *testing.T) {
	f := newFixture(t, 2)
	for i := range 5 {
		f.push(i)
	}
	f.group.Post()
	require.Len(t, f.posted, 2)
	require.Equal(t, 2, f.lane.Posted())
	for range 5 {
		f.complete(1, verbs.StatusSuccess)
		require.Equal(t, 1, f.poll(t))
		f.group.Post()
	}
	require.Equal(t, []end{{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}}, f.ends)
	require.False(t, f.group.HasWork())
}

// The completion of a request stands for those before it, and the last of what is
// posted together always has one.
func TestUnreportedRequests(t *testing.T) {
	f := newFixture(t, 8)
	for i := range 4 {
		f.push(i).Unreported = true
	}
	f.group.Post()
	f.complete(3, verbs.StatusSuccess)
	require.Zero(t, f.poll(t))
	f.complete(1, verbs.StatusSuccess)
	require.Equal(t, 4, f.poll(t))
	require.Equal(t, []end{{0, 0}, {1, 0}, {2, 0}, {3, 0}}, f.ends)
}

// A lane that is shut is drained once, when everything posted is back; the rest is
// flushed after it.
func TestShutAndFlush(t *testing.T) {
	f := newFixture(t, 2)
	for i := range 4 {
		f.push(i)
	}
	f.group.Post()
	require.NoError(t, f.lane.Shut())
	require.NoError(t, f.lane.Shut())
	require.Nil(t, f.group.Drained())
	require.Equal(t, 2, f.poll(t))
	require.Same(t, f.lane, f.group.Drained())
	require.True(t, f.group.HasWork())
	f.push(4) // too late
	f.group.Post()
	require.Empty(t, f.posted)
	require.Equal(t, 3, f.lane.Flush())
	require.Nil(t, f.group.Drained())
	require.NoError(t, f.lane.Shut())
	f.lane.GiveUp()
	require.Nil(t, f.group.Drained(), "once")
	for i, e := range f.ends {
		require.Equal(t, end{i, verbs.StatusFlushed}, e)
	}
	require.NoError(t, f.lane.Close())
	require.True(t, f.closed)
}

// What was sealed is not posted; what is pushed after that goes before it, and so does the one of
// those that wait which is to be posted.
func TestStopPosting(t *testing.T) {
	const none = 0
	for _, posted := range []int{0, 1, 2} {
		for _, own := range []int{none, 2, 3} {
			f := newFixture(t, 2)
			for i := range posted {
				f.push(i)
			}
			f.group.Post()
			waiting := []*lane.Request{none: nil, 2: &f.push(2).Request, 3: &f.push(3).Request}
			f.lane.StopPosting(waiting[own])
			f.push(9)
			f.group.Post()
			for range 4 {
				f.complete(len(f.posted), verbs.StatusSuccess)
				f.poll(t)
				f.group.Post()
			}
			want := []end{{0, 0}, {1, 0}}[:posted]
			if own != none {
				want = append(want, end{own, 0})
			}
			want = append(want, end{9, 0})
			require.Equal(t, want, f.ends)
			require.NoError(t, f.lane.Shut())
			require.Same(t, f.lane, f.group.Drained())
			var flushed []end
			for i := 2; i < 4; i++ {
				if i != own {
					flushed = append(flushed, end{i, verbs.StatusFlushed})
				}
			}
			require.Equal(t, len(flushed), f.lane.Flush())
			require.Equal(t, append(want, flushed...), f.ends)
		}
	}
}

// A device that cannot even put the queue pair in error, or whose completion queue has
// failed, is not waited for.
func TestFailingDevice(t *testing.T) {
	f := newFixture(t, 2)
	f.push(0)
	f.group.Post()
	f.refuse = errors.New("no")
	require.ErrorIs(t, f.lane.Shut(), f.refuse)
	require.Same(t, f.lane, f.group.Drained())
	require.Equal(t, 1, f.lane.Flush())

	// What the device gives back after that does not end the request's next use.
	f = newFixture(t, 2)
	j := f.push(0)
	f.group.Post()
	f.refuse = errors.New("no")
	require.ErrorIs(t, f.lane.Shut(), f.refuse)
	require.Equal(t, 1, f.lane.Flush())
	other := newDevice()
	next, err := f.group.Open(pd{d: other}, verbs.QPInit{}, 2, f)
	require.NoError(t, err)
	require.NoError(t, next.Connect(verbs.QPAttr{}))
	next.Push(&j.Request)
	f.group.Post()
	require.Len(t, other.posted, 1)
	f.complete(1, verbs.StatusSuccess)
	f.poll(t)
	require.Len(t, f.ends, 1)

	f = newFixture(t, 2)
	f.push(0)
	f.group.Post()
	f.broken = errors.New("overrun")
	_, err = f.group.Poll()
	require.ErrorIs(t, err, f.broken)
	n, err := f.group.Poll()
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, f.lane.Shut())
	require.Same(t, f.lane, f.group.Drained())

	f = newFixture(t, 4)
	f.takes = 1
	for i := range 3 {
		f.push(i)
	}
	f.group.Post()
	require.Error(t, f.failed)
	require.Equal(t, 1, f.lane.Posted())
}

// Where the device does not give back requests, they end when the queue pair is destroyed, or
// the kernel says that the device is gone; otherwise those that it has got end with an error.
func TestNoRequestEndsBeforeTheDeviceLetsGo(t *testing.T) {
	errGone := fmt.Errorf("gone: %w", verbs.ErrNoDevice)
	errNo := errors.New("no")
	for name, fail := range map[string]func(f *fixture) error{
		"modify fails": func(f *fixture) error { f.refuse = errNo; return errNo },
		"modify does nothing": func(f *fixture) error {
			f.noCompletions = true
			return nil
		},
		"completion queue fails": func(f *fixture) error {
			f.noCompletions, f.broken = true, errNo
			_, err := f.group.Poll()
			require.ErrorIs(t, err, errNo)
			return nil
		},
	} {
		for _, c := range []struct {
			name    string
			destroy error
			want    state
		}{
			{"destroyed", nil, state{destroyed: true}},
			{"gone", errGone, state{}},
			{"not destroyed", errNo, state{kept: true}},
		} {
			t.Run(name+", "+c.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFixture(t, 2)
					woken := make(chan struct{}, 1)
					f.group.Limit(lane.DefaultLimit, func() { woken <- struct{}{} })
					for i := range 3 {
						f.push(i)
					}
					f.group.Post()
					want, began := fail(f), time.Now()
					f.destroy = c.destroy
					require.ErrorIs(t, f.lane.Shut(), want)
					if name == "modify does nothing" {
						require.Nil(t, f.group.Drained())
						<-woken
						require.True(t, f.group.HasWork())
						require.Equal(t, 10*time.Second, time.Since(began))
					}
					require.Same(t, f.lane, f.group.Drained())
					require.Equal(t, 3, f.lane.Flush())
					require.Equal(t, []end{{0, verbs.StatusFlushed}, {1, verbs.StatusFlushed}, {2, verbs.StatusFlushed}}, f.ends)
					unposted := c.want
					unposted.kept = false
					require.Equal(t, []state{c.want, c.want, unposted}, f.states)
					require.Nil(t, f.group.Drained())
					if c.want.kept {
						require.ErrorIs(t, f.lane.Settle(), errs.ErrMemoryKept)
						require.ErrorIs(t, f.lane.Close(), errNo)
						f.destroy = nil
					}
					require.NoError(t, f.lane.Close())
					require.NoError(t, f.lane.Settle())
					f.group.Release()
				})
			})
		}
	}
}

// The times of several lanes, and one whose send queue the device has flushed, or that has
// receives of its own.
func TestTimesToGiveBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2)
		f.noCompletions = true
		wakes := make(chan struct{}, 9)
		f.group.Limit(time.Second, func() { wakes <- struct{}{} })
		device := newDevice()
		held, err := f.group.Open(pd{d: device}, verbs.QPInit{}, 2, f)
		require.NoError(t, err)
		require.NoError(t, held.Connect(verbs.QPAttr{}))
		receiving, err := f.group.Open(pd{d: f.device}, verbs.QPInit{}, 2, f)
		require.NoError(t, err)
		f.push(0)
		j := &job{f: f, number: 1}
		f.group.Add(&j.Request, j)
		held.Push(&j.Request)
		f.group.Post()

		device.noCompletions = true
		held.Hold()
		time.Sleep(time.Second / 2)
		n, err := receiving.PostRecv(make([]verbs.RecvWR, 2))
		require.NoError(t, err)
		require.Equal(t, 2, n)
		receiving.Received()
		require.NoError(t, receiving.Shut())
		require.NoError(t, f.lane.Shut())
		<-wakes
		require.Same(t, held, f.group.Drained())
		require.True(t, held.IsShut())
		require.Equal(t, 1, held.Flush())
		require.True(t, device.closed)
		require.Nil(t, f.group.Drained())
		receiving.Received()
		require.Same(t, receiving, f.group.Drained())
		require.Zero(t, receiving.Flush())
		f.noCompletions = false
		f.complete(1, verbs.StatusFlushed)
		f.poll(t)
		require.Same(t, f.lane, f.group.Drained())
		require.Zero(t, f.lane.Flush())
		time.Sleep(time.Minute)
		require.Nil(t, f.group.Drained())
		f.group.Release()

		// One that has come back in time is not given up.
		f = newFixture(t, 2)
		f.group.Limit(time.Second, func() {})
		f.push(0)
		f.group.Post()
		f.lane.Hold()
		f.complete(1, verbs.StatusSuccess)
		f.poll(t)
		time.Sleep(time.Minute)
		require.Nil(t, f.group.Drained())
		require.NoError(t, f.lane.Resume())
		require.False(t, f.lane.IsShut())
		f.group.Release()
	})
}

// A callback that panics while a lane is flushed costs no other request its own, and
// no other lane.
func TestFlushAfterAPanic(t *testing.T) {
	f := newFixture(t, 2)
	other, err := f.group.Open(pd{d: f.device}, verbs.QPInit{}, 2, f)
	require.NoError(t, err)
	for i := range 3 {
		f.push(i)
	}
	require.NoError(t, f.lane.Shut())
	require.NoError(t, other.Shut())
	f.panics = true
	require.Panics(t, func() { f.lane.Flush() })
	require.Same(t, f.lane, f.group.Drained())
	require.Equal(t, 2, f.lane.Flush())
	require.Len(t, f.ends, 3)
	require.Same(t, other, f.group.Drained())
	require.Zero(t, other.Flush())
	require.Nil(t, f.group.Drained())
	require.False(t, f.lane.Posted() > 0)
}

// Completions that come together with an error of the completion queue count, and
// the error is returned once, also after a callback that panicked.
func TestCompletionsWithAnError(t *testing.T) {
	for _, panics := range []bool{false, true} {
		f := newFixture(t, 4)
		for i := range 3 {
			f.push(i)
		}
		f.group.Post()
		f.complete(3, verbs.StatusSuccess)
		f.broken, f.panics = errors.New("overrun"), panics
		if panics {
			require.Panics(t, func() { _, _ = f.group.Poll() })
			require.True(t, f.group.HasWork())
		}
		_, err := f.group.Poll()
		require.ErrorIs(t, err, f.broken)
		require.Equal(t, []end{{0, 0}, {1, 0}, {2, 0}}, f.ends)
		require.False(t, f.group.HasWork())
		require.False(t, f.group.Fetch())
		n, err := f.group.Poll()
		require.NoError(t, err)
		require.Zero(t, n)
	}
	f := newFixture(t, 4)
	f.push(0)
	f.group.Post()
	f.complete(1, verbs.StatusSuccess)
	f.broken = errors.New("overrun")
	require.True(t, f.group.Fetch())
	_, err := f.group.Poll()
	require.ErrorIs(t, err, f.broken)
	require.Len(t, f.ends, 1)
	require.False(t, f.group.Fetch())
}

// A request that is pushed before the lane is connected is posted when it is.
func TestPushBeforeConnect(t *testing.T) {
	f := newFixture(t, 2)
	require.NoError(t, f.lane.Reset())
	f.push(0)
	f.group.Post()
	require.Empty(t, f.posted)
	require.NoError(t, f.lane.Connect(verbs.QPAttr{}))
	f.group.Post()
	require.Len(t, f.posted, 1)
}

// Requests that are withheld wait until they are admitted, behind what is pushed meanwhile: also
// while the queue pair is reset, or replaced.
func TestWithhold(t *testing.T) {
	f := newFixture(t, 8)
	withhold := func(number int) {
		j := &job{f: f, number: number}
		f.group.Add(&j.Request, j)
		f.lane.Withhold(&j.Request)
	}
	withhold(1)
	f.push(0) // a signal
	f.group.Post()
	require.Len(t, f.posted, 1)
	require.NoError(t, f.lane.Reset())
	require.Empty(t, f.ends)
	f.posted = nil
	require.NoError(t, f.lane.Connect(verbs.QPAttr{}))
	withhold(2)
	f.group.Post()
	require.Empty(t, f.posted)
	f.lane.Admit()
	f.push(3)
	f.group.Post()
	f.complete(3, verbs.StatusSuccess)
	require.Equal(t, 3, f.poll(t))
	require.Equal(t, []end{{1, 0}, {2, 0}, {3, 0}}, f.ends)

	withhold(4)
	withhold(5)
	old := f.lane
	var err error
	f.lane, err = f.group.Open(pd{d: f.device}, verbs.QPInit{}, 8, f)
	require.NoError(t, err)
	f.lane.TakeWithheld(old)
	require.NoError(t, old.Close())
	require.Zero(t, old.Flush())
	require.NoError(t, f.lane.Shut())
	require.Same(t, f.lane, f.group.Drained())
	require.Equal(t, 2, f.lane.Flush())
	require.Equal(t, []end{{4, verbs.StatusFlushed}, {5, verbs.StatusFlushed}}, f.ends[3:])
}

// Completions of earlier uses of a request are ignored, also of another request with
// the same index.
func TestChangeID(t *testing.T) {
	f := newFixture(t, 2)
	j := f.push(0)
	f.group.Post()
	old := f.posted[0].ID
	require.NoError(t, f.lane.Reset())
	j.ChangeID()
	require.NoError(t, f.lane.Connect(verbs.QPAttr{}))
	f.lane.Push(&j.Request)
	f.group.Post()
	f.done = []verbs.WC{{ID: old, Status: verbs.StatusRetryExceeded}, {ID: 12345}, {ID: lane.ReceiveID - 1}}
	require.Equal(t, 3, f.poll(t))
	require.Empty(t, f.ends)
	f.posted = f.posted[1:]
	f.complete(1, verbs.StatusSuccess)
	require.Equal(t, 1, f.poll(t))
	require.Len(t, f.ends, 1)
	old = j.WR.ID
	f.group.Remove(&j.Request)
	f.push(1)
	f.group.Post()
	require.NotEqual(t, old, f.posted[0].ID)
	f.done = []verbs.WC{{ID: old}}
	require.Equal(t, 1, f.poll(t))
	require.Len(t, f.ends, 1)
}

// countingCQ counts the looks into a completion queue.
type countingCQ struct {
	verbs.CQ
	n, waiting int
}

func (c *countingCQ) Poll(wcs []verbs.WC) (int, error) {
	c.n++
	n := min(len(wcs), c.waiting)
	for i := range n {
		wcs[i] = verbs.WC{ID: 1 << 20} // of nobody
	}
	c.waiting -= n
	return n, nil
}

// A short batch is all that there was. But it takes a look after its callbacks to
// know that the queue is empty.
func TestPollsOfTheQueue(t *testing.T) {
	for waiting, want := range map[int]int{0: 1, 1: 1, lane.PollBatch - 1: 1, lane.PollBatch: 2, lane.PollBatch + 1: 2} {
		queue := &countingCQ{waiting: waiting}
		var g lane.Group
		g.Attach(queue, math.MaxInt, nil)
		n, err := g.Poll()
		require.NoError(t, err)
		assert.Equal(t, waiting, n)
		assert.Equal(t, want, queue.n, "looks for %d", waiting)
		assert.Equal(t, waiting%lane.PollBatch == 0, g.Empty(), "%d", waiting)
		n, _ = g.Poll()
		assert.Zero(t, n)
		assert.True(t, g.Empty())
	}
}

// Events of queue pairs beyond a bound are dropped, and that is known.
func TestEvents(t *testing.T) {
	var e lane.Events
	require.False(t, e.Pending())
	for range 5000 {
		e.Add(verbs.Event{Type: verbs.EventPortActive})
	}
	e.Add(verbs.Event{Type: verbs.EventDeviceFatal})
	require.True(t, e.Pending())
	list, lost := e.Take()
	require.True(t, lost)
	require.Less(t, len(list), 5000)
	require.Equal(t, verbs.EventDeviceFatal, list[len(list)-1].Type, "such an event is never dropped")
	require.False(t, e.Pending())
	list, lost = e.Take()
	require.False(t, lost)
	require.Empty(t, list)
}

// Whatever is pushed, completed, sealed and shut in whatever order: every request
// ends once, in the order of submission, and none succeeds after one that failed.
func TestEveryRequestEndsOnceInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newFixture(rt, rapid.IntRange(1, 70).Draw(rt, "depth"))
		n := 0
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 3).Draw(rt, "step") {
			case 0:
				for range rapid.IntRange(1, 80).Draw(rt, "requests") {
					f.push(n).Unreported = rapid.Bool().Draw(rt, "unreported")
					n++
				}
			case 1:
				f.group.Post()
			case 2:
				f.complete(rapid.IntRange(0, len(f.posted)).Draw(rt, "completed"), verbs.StatusSuccess)
			case 3:
				f.poll(rt)
			}
			require.LessOrEqual(rt, len(f.posted), f.depth)
		}
		require.NoError(rt, f.lane.Shut())
		for f.poll(rt) > 0 {
		}
		require.Same(rt, f.lane, f.group.Drained())
		f.lane.Flush()
		require.Len(rt, f.ends, n)
		failed := false
		for i, e := range f.ends {
			require.Equal(rt, i, e.number)
			require.False(rt, failed && e.status == verbs.StatusSuccess)
			failed = failed || e.status != verbs.StatusSuccess
		}
	})
}

func TestNothingIsAllocated(t *testing.T) {
	f := newFixture(t, 128)
	jobs := make([]*job, 128)
	for i := range jobs {
		jobs[i] = &job{f: f, number: i}
		f.group.Add(&jobs[i].Request, jobs[i])
	}
	round := func() {
		f.ends, f.posted, f.done = f.ends[:0], f.posted[:0], f.done[:0]
		for _, j := range jobs {
			f.lane.Push(&j.Request)
		}
		f.group.Post()
		for _, wr := range f.posted {
			f.done = append(f.done, verbs.WC{ID: wr.ID})
		}
		done := f.done
		f.poll(t)
		f.done = done
		if len(f.ends) != len(jobs) {
			t.Fatal("some requests did not end")
		}
	}
	round()
	assert.Zero(t, testing.AllocsPerRun(100, round))
}

// BenchmarkRequest is the way of a request through a lane, 64 posted at a time.
func BenchmarkRequest(b *testing.B) {
	f := newFixture(b, 64)
	done := make([]verbs.WC, 64)
	jobs := make([]*job, 64)
	for i := range jobs {
		jobs[i] = &job{f: f, number: i}
		f.group.Add(&jobs[i].Request, jobs[i])
		done[i].ID = jobs[i].WR.ID
	}
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(jobs) {
		f.ends, f.posted, f.done = f.ends[:0], f.posted[:0], done
		for _, j := range jobs {
			f.lane.Push(&j.Request)
		}
		f.group.Post()
		f.poll(b)
	}
}
