package rdma

import "github.com/verbena-rdma/verbena/syncevent"

// SyncEventGetPool is a pool of sync event gets.
type SyncEventGetPool struct{ pool[SyncEventGetTask] }

// SyncEventGetTask gets the value of a sync event of the peer, with a read. It
// can be submitted again until the value is the one that is waited for: only the
// event's owner can wait for it without asking.
type SyncEventGetTask struct {
	eventRequest
	pool *SyncEventGetPool
}

func (t *SyncEventGetTask) succeeded()       { t.pool.done(t) }
func (t *SyncEventGetTask) failed(err error) { t.pool.failed(t, err) }

func syncEventGetRequest(t *SyncEventGetTask) *request { return &t.request }

// SyncEventGetPool makes a pool of n sync event gets. done and failed run on the
// engine's goroutine, inside Progress; the error is a *TaskError. It is legal in
// Idle. Its errors are those of pe.NewPool, and ErrNotSupported.
func (c *Context) SyncEventGetPool(n int, done func(*SyncEventGetTask), failed func(*SyncEventGetTask, error)) (*SyncEventGetPool, error) {
	p := &SyncEventGetPool{}
	err := makeRequests(c, &p.pool, OpSyncEventGet, n, done, failed, syncEventGetRequest, func(t *SyncEventGetTask) finisher {
		t.pool = p
		return t
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Alloc takes a task out of the pool that gets the value of ev, a sync event that
// the peer has exported and this program has imported, and holds ev until the task
// is freed. The peer's Config.Permissions must have mmap.RemoteRead. Errors match
// those of pe.Pool.Alloc, and ErrInvalid and syncevent.ErrClosed.
func (p *SyncEventGetPool) Alloc(conn *Connection, ev *syncevent.Event) (*SyncEventGetTask, error) {
	return allocEvent(&p.pool, syncEventGetRequest, conn, ev)
}

// Free puts the task back into its pool and lets go of its event. It is legal
// whenever the task is not in flight. Errors are those of pe.Pool.Free.
func (t *SyncEventGetTask) Free() error { return freeRequest(&t.pool.pool, syncEventGetRequest, t) }

// Value is the value that the event had, once the task has completed.
func (t *SyncEventGetTask) Value() uint64 { return t.value }
