package rdma

import "github.com/verbena-rdma/verbena/syncevent"

// SyncEventSetPool is a pool of sync event sets.
type SyncEventSetPool struct{ pool[SyncEventSetTask] }

// SyncEventSetTask sets the value of a sync event of the peer, with a write, and
// so wakes those who wait for it there. What they may rely on is in the package
// comment, under Sync events.
type SyncEventSetTask struct {
	eventRequest
	pool *SyncEventSetPool
}

func (t *SyncEventSetTask) succeeded()       { t.pool.done(t) }
func (t *SyncEventSetTask) failed(err error) { t.pool.failed(t, err) }

func syncEventSetRequest(t *SyncEventSetTask) *request { return &t.request }

// SyncEventSetPool makes a pool of n sync event sets. done and failed run on the
// engine's goroutine, inside Progress; the error is a *TaskError. It is legal in
// Idle. Its errors are those of pe.NewPool, and ErrNotSupported.
func (c *Context) SyncEventSetPool(n int, done func(*SyncEventSetTask), failed func(*SyncEventSetTask, error)) (*SyncEventSetPool, error) {
	p := &SyncEventSetPool{}
	err := makeRequests(c, &p.pool, OpSyncEventSet, n, done, failed, syncEventSetRequest, func(t *SyncEventSetTask) finisher {
		t.pool = p
		return t
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Alloc takes a task out of the pool that sets ev, a sync event that the peer has
// exported and this program has imported, to value, and holds ev until the task is
// freed. The peer's Config.Permissions must have mmap.RemoteWrite. Errors match
// those of pe.Pool.Alloc, and ErrInvalid, ErrPermission and syncevent.ErrClosed.
func (p *SyncEventSetPool) Alloc(conn *Connection, ev *syncevent.Event, value uint64) (*SyncEventSetTask, error) {
	t, err := allocEvent(&p.pool, syncEventSetRequest, conn, ev)
	if err != nil {
		return nil, err
	}
	t.value = value
	return t, nil
}

// Free puts the task back into its pool and lets go of its event. It is legal
// whenever the task is not in flight. Errors are those of pe.Pool.Free.
func (t *SyncEventSetTask) Free() error { return freeRequest(&t.pool.pool, syncEventSetRequest, t) }

// Value is the value to be set.
func (t *SyncEventSetTask) Value() uint64 { return t.value }

// SetValue sets the value that the next submission sets.
func (t *SyncEventSetTask) SetValue(value uint64) error {
	if err := t.control.MayChange(&t.Task, "value"); err != nil {
		return err
	}
	t.value = value
	return nil
}
