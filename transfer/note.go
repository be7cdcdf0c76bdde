package transfer

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// Note is a value that another agent has sent, with a batch ([Batch.Note]).
type Note struct {
	From  Addr   // where the agent listens that sent it, as the device that did; without a port if it does not
	Epoch uint64 // of that agent, as it says; segments of another epoch are stale
	Value uint32 // that was given to Batch.Note
}

// received is a note in the receive that it has come to.
type received struct {
	note Note
	dev  *localDevice
	task *rdma.ReceiveTask
}

// Note waits for the next note of any agent, and returns it. What the items before it have written is in memory.
// An agent whose program does not call Note has those wait that send it notes. The error matches the cause of ctx,
// ErrClosed when the agent has ended and no note is left, or ErrInvalid if the agent does not listen, so that no note
// can come.
func (a *Agent) Note(ctx context.Context) (Note, error) {
	if len(a.addrs) == 0 {
		return Note{}, fmt.Errorf("wait for a note: %w: the agent does not listen; set Config.Listen", ErrInvalid)
	}
	ended := func() (Note, error) { return Note{}, fmt.Errorf("wait for a note: %w", context.Cause(ctx)) }
	if ctx.Err() != nil { // also while notes come faster than the program takes them
		return ended()
	}
	var n received
	select {
	case n = <-a.notes:
	case <-ctx.Done():
		return ended()
	case <-a.over:
		select {
		case n = <-a.notes:
		default:
			a.mu.Lock()
			defer a.mu.Unlock()
			return Note{}, a.closed
		}
	}
	_ = n.dev.engine.Do(func() { _ = pe.SubmitOrFree(n.task, nil) }) // the next one can come
	return n.note, nil
}

// noted takes a note.
func (d *localDevice) noted(t *rdma.ReceiveTask) {
	a := d.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	value, isNote := t.Imm()
	from, epoch, ok := d.transport.sender(t, isNote && t.Length() == 0)
	if !ok {
		a.counters.Refused++
		_ = pe.SubmitOrFree(t, nil)
		return
	}
	a.notes <- received{Note{from, epoch, value}, d, t} // has room for all receives
}
