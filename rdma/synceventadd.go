package rdma

import "github.com/verbena-rdma/verbena/syncevent"

// SyncEventAddPool is a pool of sync event additions.
type SyncEventAddPool struct{ pool[SyncEventAddTask] }

// SyncEventAddTask adds to the value of a sync event of the peer, in one step,
// with a fetch-and-add, and so wakes those who wait for it there. What they may
// rely on is in the package comment, under Sync events.
type SyncEventAddTask struct {
	eventRequest
	pool *SyncEventAddPool
}

func (t *SyncEventAddTask) succeeded()       { t.pool.done(t) }
func (t *SyncEventAddTask) failed(err error) { t.pool.failed(t, err) }

func syncEventAddRequest(t *SyncEventAddTask) *request { return &t.request }

// SyncEventAddPool makes a pool of n sync event additions. done and failed run on
// the engine's goroutine, inside Progress; the error is a *TaskError. It is legal
// in Idle. Its errors are those of pe.NewPool, and ErrNotSupported.
func (c *Context) SyncEventAddPool(n int, done func(*SyncEventAddTask), failed func(*SyncEventAddTask, error)) (*SyncEventAddPool, error) {
	p := &SyncEventAddPool{}
	err := makeRequests(c, &p.pool, OpSyncEventAdd, n, done, failed, syncEventAddRequest, func(t *SyncEventAddTask) finisher {
		t.pool = p
		return t
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Alloc takes a task out of the pool that adds value, modulo 2^64, to ev, a sync
// event that the peer has exported and this program has imported, and holds ev
// until the task is freed. The peer's Config.Permissions must have
// mmap.RemoteAtomic. Errors match those of pe.Pool.Alloc, and ErrInvalid,
// ErrPermission, ErrNotSupported (the device of the event's owner has no atomics)
// and syncevent.ErrClosed.
func (p *SyncEventAddPool) Alloc(conn *Connection, ev *syncevent.Event, value uint64) (*SyncEventAddTask, error) {
	t, err := allocEvent(&p.pool, syncEventAddRequest, conn, ev)
	if err != nil {
		return nil, err
	}
	t.send.WR.CompareAdd = value
	return t, nil
}

// Free puts the task back into its pool and lets go of its event. It is legal
// whenever the task is not in flight. Errors are those of pe.Pool.Free.
func (t *SyncEventAddTask) Free() error { return freeRequest(&t.pool.pool, syncEventAddRequest, t) }

// Original is the value that the event had before, once the task has completed.
func (t *SyncEventAddTask) Original() uint64 { return t.old }

// Value is the value to be added.
func (t *SyncEventAddTask) Value() uint64 { return t.send.WR.CompareAdd }

// SetValue sets the value that the next submission adds.
func (t *SyncEventAddTask) SetValue(value uint64) error {
	if err := t.control.MayChange(&t.Task, "value"); err != nil {
		return err
	}
	t.send.WR.CompareAdd = value
	return nil
}
