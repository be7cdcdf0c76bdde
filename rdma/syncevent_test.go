package rdma_test

import (
	"context"
	"math"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/internal/wirecode"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

const all = math.MaxUint64

// event makes a sync event of b, and a's handle of it.
func (r *rig) event(cfg syncevent.Config) (own, seen *syncevent.Event) {
	r.t.Helper()
	own, err := syncevent.New(r.b.dev, cfg)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, own.Close()) })
	return own, r.handle(r.a, must(own.Export()))
}

// handle imports a sync event for one side.
func (r *rig) handle(s *side, desc []byte) *syncevent.Event {
	r.t.Helper()
	seen, err := syncevent.Import(s.dev, desc)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, seen.Close()) })
	return seen
}

var open = syncevent.Config{Publishers: syncevent.PublishLocal | syncevent.PublishRemote}

// eventPools are pools of one task of each kind, on a.
type eventPools struct {
	gets    outcome[*rdma.Task]
	sets    outcome[*rdma.Task]
	adds    outcome[*rdma.Task]
	getPool *rdma.Pool
	setPool *rdma.Pool
	addPool *rdma.Pool
}

func newEventPools(r *rig) *eventPools {
	p := &eventPools{}
	p.getPool = must(r.a.ctx.Pool(1, p.gets.ok, p.gets.bad))
	p.setPool = must(r.a.ctx.Pool(1, p.sets.ok, p.sets.bad))
	p.addPool = must(r.a.ctx.Pool(1, p.adds.ok, p.adds.bad))
	return p
}

func TestSyncEventTasks(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	p := newEventPools(r)
	r.connect(1)
	own, seen := r.event(open)
	conn := r.a.conns[0]
	get := must(p.getPool.SyncEventGet(conn, seen))
	set := must(p.setPool.SyncEventSet(conn, seen, 0xd0ca))
	add := must(p.addPool.SyncEventAdd(conn, seen, 1))
	value := func() uint64 {
		t.Helper()
		n := len(p.gets.done)
		require.NoError(t, get.TrySubmit())
		r.until("the value was got", func() bool { return len(p.gets.done) == n+1 })
		assert.Equal(t, 8, get.Bytes())
		return get.Original()
	}

	assert.Zero(t, value())
	require.NoError(t, set.TrySubmit())
	require.ErrorIs(t, set.SetValue(1), pe.ErrInUse)
	require.ErrorIs(t, set.SetEvent(seen), pe.ErrInUse)
	r.until("the value is set", func() bool { return len(p.sets.done) == 1 })
	assert.EqualValues(t, 0xd0ca, must(own.Get()))
	assert.EqualValues(t, 0xd0ca, value())

	require.NoError(t, add.TrySubmit())
	r.until("one was added", func() bool { return len(p.adds.done) == 1 })
	assert.EqualValues(t, 0xd0ca, add.Original())
	assert.EqualValues(t, 0xd0cb, must(own.Get()))

	// The same tasks once more.
	require.NoError(t, set.SetValue(all))
	assert.EqualValues(t, uint64(all), set.Value())
	require.NoError(t, add.SetValue(3))
	assert.EqualValues(t, 3, add.Value())
	n, err := rdma.SubmitAll([]*rdma.Task{set, add}, 0)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	r.until("both are done", func() bool { return len(p.sets.done)+len(p.adds.done) == 4 })
	assert.EqualValues(t, uint64(all), add.Original())
	assert.EqualValues(t, 2, must(own.Get()), "the sum wraps")

	// Another event; the tasks let go of the first.
	other, seenOther := r.event(open)
	require.NoError(t, other.Set(77))
	require.ErrorIs(t, get.SetEvent(nil), rdma.ErrInvalid)
	assert.Same(t, seen, get.Event())
	require.NoError(t, get.SetEvent(seenOther))
	assert.Same(t, seenOther, get.Event())
	require.NoError(t, get.SetEvent(seenOther), "the same one again")
	assert.EqualValues(t, 77, value())
	require.ErrorIs(t, seen.Close(), syncevent.ErrInUse)

	for op, task := range map[rdma.Operation]*rdma.Task{rdma.OpSyncEventGet: get, rdma.OpSyncEventSet: set, rdma.OpSyncEventAdd: add} {
		assert.Equal(t, op, task.Operation())
		assert.Same(t, conn, task.Connection())
		task.SetUserData(op)
		assert.Equal(t, op, task.UserData())
		require.NoError(t, task.Free())
		require.ErrorIs(t, task.Free(), pe.ErrFreed)
		require.ErrorIs(t, task.Submit(), pe.ErrFreed)
		for _, err := range setAll(r, task) {
			require.ErrorIs(t, err, pe.ErrFreed)
		}
		require.ErrorIs(t, task.SetEvent(seen), pe.ErrFreed)
	}
	assert.Empty(t, append(append(p.gets.errs, p.sets.errs...), p.adds.errs...))
	assert.Equal(t, 1, p.getPool.Available())
}

// Who waits at the peer sleeps, and is woken by tasks of either kind.
func TestSyncEventWakes(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	p := newEventPools(r)
	r.connect(1)
	own, seen := r.event(open)
	set := must(p.setPool.SyncEventSet(r.a.conns[0], seen, 40))
	add := must(p.addPool.SyncEventAdd(r.a.conns[0], seen, 2))
	for i, task := range []*rdma.Task{set, add} {
		woken := make(chan uint64, 1)
		go func() {
			v, err := own.Wait(t.Context(), syncevent.Greater(uint64(40*i)))
			assert.NoError(t, err)
			woken <- v
		}()
		require.NoError(t, task.Submit())
		r.until("the waiter is woken", func() bool { return len(woken) > 0 })
		assert.EqualValues(t, 40+2*i, <-woken)
		r.until("the task is done", func() bool { return !task.InFlight() })
		require.NoError(t, task.Free())
	}
}

func TestSyncEventMisuse(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	p := newEventPools(r)
	r.connect(1)
	conn := r.a.conns[0]
	own, seen := r.event(open)
	elsewhere := r.handle(r.b, must(own.Export()))
	_, readOnly := r.event(syncevent.Config{Publishers: syncevent.PublishLocal})
	noAtomics := r.handle(r.a, edited(t, must(own.Export()), func(d *eventDescriptor) { d.atomics = false }))
	closed, err := syncevent.Import(r.a.dev, must(own.Export()))
	require.NoError(t, err)
	require.NoError(t, closed.Close())

	for name, c := range map[string]struct {
		conn          *rdma.Connection
		event         *syncevent.Event
		get, set, add error
		text          string
	}{
		"no connection":         {nil, seen, rdma.ErrInvalid, rdma.ErrInvalid, rdma.ErrInvalid, "no connection"},
		"the peer's connection": {r.b.conns[0], seen, rdma.ErrInvalid, rdma.ErrInvalid, rdma.ErrInvalid, "does not belong to context"},
		"no event":              {conn, nil, rdma.ErrInvalid, rdma.ErrInvalid, rdma.ErrInvalid, "import the peer's"},
		"not imported":          {conn, own, rdma.ErrInvalid, rdma.ErrInvalid, rdma.ErrInvalid, "import the peer's"},
		"of another device":     {conn, elsewhere, rdma.ErrInvalid, rdma.ErrInvalid, rdma.ErrInvalid, "was imported for"},
		"not open to changes":   {conn, readOnly, nil, rdma.ErrPermission, rdma.ErrPermission, "PublishRemote"},
		"no atomics":            {conn, noAtomics, nil, nil, rdma.ErrNotSupported, "no atomics"},
		"closed":                {conn, closed, syncevent.ErrClosed, syncevent.ErrClosed, syncevent.ErrClosed, "closed"},
	} {
		t.Run(name, func(t *testing.T) {
			get, err := p.getPool.SyncEventGet(c.conn, c.event)
			verdict(t, err, c.get, "sync event get", c.text)
			set, err := p.setPool.SyncEventSet(c.conn, c.event, 1)
			verdict(t, err, c.set, "sync event set", c.text)
			add, err := p.addPool.SyncEventAdd(c.conn, c.event, 1)
			verdict(t, err, c.add, "sync event addition", c.text)
			if get != nil {
				require.NoError(t, get.Free())
			}
			if set != nil {
				require.NoError(t, set.Free())
			}
			if add != nil {
				require.NoError(t, add.Free())
			}
			assert.Equal(t, 3, p.getPool.Available()+p.setPool.Available()+p.addPool.Available())
		})
	}
	// A setter is as strict.
	add := must(p.addPool.SyncEventAdd(conn, seen, 1))
	for _, bad := range []*syncevent.Event{nil, own, elsewhere, readOnly, noAtomics, closed} {
		require.ErrorContains(t, add.SetEvent(bad), "set the event of a sync event addition")
		assert.Same(t, seen, add.Event())
	}
	require.NoError(t, add.Free())
	// An exhausted pool.
	get := must(p.getPool.SyncEventGet(conn, seen))
	_, err = p.getPool.SyncEventGet(conn, seen)
	require.ErrorIs(t, err, pe.ErrExhausted)
	require.NoError(t, get.Free())
}

func verdict(t *testing.T, err, want error, texts ...string) {
	t.Helper()
	if want == nil {
		require.NoError(t, err)
		return
	}
	require.ErrorIs(t, err, want)
	for _, text := range texts {
		assert.ErrorContains(t, err, text)
	}
}

// eventDescriptor is what a descriptor of a sync event says.
type eventDescriptor struct {
	addr              uint64
	rkey              uint32
	order, publishers uint8
	atomics           bool
}

func (d *eventDescriptor) code(c *wirecode.Coder) {
	c.Uint64(&d.addr)
	c.Uint32(&d.rkey)
	c.Uint8(&d.order)
	c.Uint8(&d.publishers)
	c.Bool(&d.atomics)
}

// edited makes a descriptor with other claims.
func edited(t *testing.T, desc []byte, edit func(*eventDescriptor)) []byte {
	t.Helper()
	in := wirecode.ReadFrom(must(descriptor.Decode(descriptor.SyncEvent, desc)))
	var d eventDescriptor
	d.code(in)
	require.NoError(t, in.Done())
	edit(&d)
	var out wirecode.Coder
	d.code(&out)
	return must(descriptor.Encode(descriptor.SyncEvent, must(out.Payload())))
}

// The value of a host of the other byte order is turned around when it is read or
// written; atomics carry numbers.
func TestSyncEventByteOrder(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	p := newEventPools(r)
	r.connect(1)
	own, _ := r.event(open)
	swapped := r.handle(r.a, edited(t, must(own.Export()), func(d *eventDescriptor) { d.order = 3 - d.order }))
	require.True(t, swapped.Friends(friend.Package{}).Swapped())
	const v = 0x0102030405060708
	set := must(p.setPool.SyncEventSet(r.a.conns[0], swapped, v))
	get := must(p.getPool.SyncEventGet(r.a.conns[0], swapped))
	add := must(p.addPool.SyncEventAdd(r.a.conns[0], swapped, 1))
	n, err := rdma.SubmitAll([]*rdma.Task{set, get}, 0)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	r.until("it was set and got", func() bool { return len(p.gets.done)+len(p.sets.done) == 2 })
	assert.Equal(t, bits.ReverseBytes64(v), must(own.Get()))
	assert.EqualValues(t, uint64(v), get.Original())
	require.NoError(t, add.Submit())
	r.until("it was added", func() bool { return len(p.adds.done) == 1 })
	assert.Equal(t, bits.ReverseBytes64(v), add.Original())
	require.NoError(t, rdma.FreeAll([]*rdma.Task{set, get, add}))
}

// What the descriptor does not say, the peer refuses; the value stays.
func TestSyncEventRefusedByThePeer(t *testing.T) {
	for name, c := range map[string]struct {
		peer rdma.Config
		edit func(*eventDescriptor)
		task int // get, set, add
		want error
	}{
		"wrong key":               {rdma.Config{}, func(d *eventDescriptor) { d.rkey ^= 0xffff }, 0, rdma.ErrRemoteAccess},
		"wrong address":           {rdma.Config{}, func(d *eventDescriptor) { d.addr += 1 << 32 }, 1, rdma.ErrRemoteAccess},
		"not allowed to set":      {rdma.Config{}, func(d *eventDescriptor) { d.publishers |= 2 }, 1, rdma.ErrRemoteAccess},
		"not allowed to add":      {rdma.Config{}, func(d *eventDescriptor) { d.publishers |= 2; d.atomics = true }, 2, rdma.ErrRemoteAccess},
		"context allows no reads": {rdma.Config{Permissions: everything &^ 2}, func(*eventDescriptor) {}, 0, rdma.ErrRemoteInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rdma.Config{}, c.peer)
			p := newEventPools(r)
			r.connect(1)
			own, _ := r.event(syncevent.Config{Publishers: syncevent.PublishLocal})
			seen := r.handle(r.a, edited(t, must(own.Export()), func(d *eventDescriptor) {
				d.publishers, d.atomics = 3, true
				c.edit(d)
			}))
			conn := r.a.conns[0]
			task := [...]*rdma.Task{must(p.getPool.SyncEventGet(conn, seen)), must(p.setPool.SyncEventSet(conn, seen, 1)), must(p.addPool.SyncEventAdd(conn, seen, 1))}
			require.NoError(t, task[c.task].TrySubmit())
			failures := func() []error {
				return append(append(append([]error{}, p.gets.errs...), p.sets.errs...), p.adds.errs...)
			}
			r.until("the task has failed", func() bool { return len(failures()) == 1 })
			require.ErrorIs(t, failures()[0], c.want)
			var failure *rdma.TaskError
			require.ErrorAs(t, failures()[0], &failure)
			assert.Equal(t, task[c.task].Operation(), failure.Op)
			assert.NotEqual(t, verbs.StatusSuccess, failure.Status)
			assert.Zero(t, must(own.Get()))
			require.NoError(t, rdma.FreeAll(task[:]))
		})
	}
}

// An event that its owner has closed is not to be had any more, and tasks in
// flight come back when the context stops.
func TestSyncEventGone(t *testing.T) {
	r := newRig(t, rdma.Config{MaxConnections: 2}, rdma.Config{MaxConnections: 2})
	p := newEventPools(r)
	r.connect(2)
	own, err := syncevent.New(r.b.dev, syncevent.Config{Publishers: syncevent.PublishRemote})
	require.NoError(t, err)
	seen := r.handle(r.a, must(own.Export()))
	require.NoError(t, own.Close())
	set := must(p.setPool.SyncEventSet(r.a.conns[0], seen, 1))
	require.NoError(t, set.Submit())
	r.until("the set has failed", func() bool { return len(p.sets.failed) == 1 })
	require.ErrorIs(t, p.sets.errs[0], rdma.ErrRemoteAccess)
	require.ErrorIs(t, set.Submit(), rdma.ErrNotReady)

	add := must(p.addPool.SyncEventAdd(r.a.conns[1], seen, 1))
	require.NoError(t, add.Submit(pe.Aggregate))
	require.NoError(t, r.a.ctx.Stop())
	r.until("the addition came back", func() bool { return len(p.adds.failed) == 1 })
	require.ErrorIs(t, p.adds.errs[0], rdma.ErrFlushed)
	require.NoError(t, rdma.FreeAll([]*rdma.Task{set, add}))
}

// Not one half of a value is ever seen without the other.
func TestSyncEventSetsAreNotTorn(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	p := newEventPools(r)
	r.connect(1)
	own, seen := r.event(open)
	set := must(p.setPool.SyncEventSet(r.a.conns[0], seen, 0))
	get := must(p.getPool.SyncEventGet(r.a.conns[0], seen))
	whole := func(v uint64) bool { return uint32(v) == uint32(v>>32) }
	ctx, stop := context.WithCancel(t.Context())
	watched := make(chan uint64)
	go func() {
		for ctx.Err() == nil {
			if v := must(own.Get()); !whole(v) {
				watched <- v
				return
			}
		}
		close(watched)
	}()
	rounds := 0
	resubmit := func() {
		rounds++
		assert.True(t, whole(get.Original()), "%#x", get.Original())
		if rounds < 4000 {
			require.NoError(t, set.SetValue(uint64(rounds)*0x1_0000_0001*0x9e37))
			_, err := rdma.SubmitAll([]*rdma.Task{set, get}, 0)
			require.NoError(t, err)
		}
	}
	p.gets.then = func(*rdma.Task) { resubmit() }
	resubmit()
	r.until("all values were set", func() bool { return rounds == 4000 })
	stop()
	if v, torn := <-watched; torn {
		assert.Fail(t, "torn", "%#x", v)
	}
	require.NoError(t, rdma.FreeAll([]*rdma.Task{set, get}))
}
