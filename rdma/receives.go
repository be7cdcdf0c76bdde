package rdma

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/rdma/internal/receiving"
	"github.com/verbena-rdma/verbena/verbs"
)

// receives is the part of a context that posts receives, and gives them to their receivers when
// they have completed.
type receives struct {
	receiving.Receives
	core     *core
	messages *messages // nil unless Receive or ReceivePerConnection was called
	arrival  arrival   // the one that is being handled
}

// receiver handles the outcome of a receive: a task, or the function for messages.
type receiver interface {
	receiving.Owner
	// arrived is called when the receive has taken a message.
	arrived(t receiving.Taken, a *arrival)
	// failed is called when the receive has failed. The connection may be nil.
	failed(t receiving.Taken, conn *Connection, err *TaskError)
	// lengthAdvice says what to do about a message that was too long for the receive.
	lengthAdvice() string
}

func receiverOf(t receiving.Taken) receiver { return t.Owner.(receiver) }

// depth is the most receives at the device, which follows from the pools.
func (r *receives) depth() int { return min(r.Total(), r.core.set.caps.MaxReceives) }

// most is how many receives can complete at a time.
func (r *receives) most() int {
	return r.Total() + r.Each()*r.core.set.MaxConnections
}

// open implements part.
func (r *receives) open() error {
	c, s := r.core, r.core.set
	connections, depth := s.caps.connections(), r.depth()
	if r.Total() > 0 && connections && !s.receivesShared && depth < s.MaxConnections {
		return fmt.Errorf("%w: the device takes %d receives at a time, which is less than Config.MaxConnections, %d; connections of %v on %s have no shared receive queue, so each needs a receive of its own: use larger pools of receives, or more buffers in Receive, or lower Config.MaxConnections",
			ErrRange, depth, s.MaxConnections, s.Transport, c.dev.Name())
	}
	return r.Open(receiving.Config{
		PD: s.PD, Depth: depth, Connections: s.MaxConnections, Shared: connections && s.receivesShared,
		MaxSGE: s.recvSGE, Poller: c.Engine(), Headers: s.Transport == verbs.UD,
	})
}

// work implements part: receives are posted with requests.
func (r *receives) work() int { return 0 }

// busy implements part: it reports whether a receive is to be posted and there is room for it.
func (r *receives) busy() bool { return r.Busy() }

// post posts waiting receives while the receive queues have room.
func (r *receives) post() {
	if err := r.Post(); err != nil {
		c := r.core
		c.control.Fail(fmt.Errorf("rdma: %w: post receives of context %q on %s: %w", ErrDevice, c.set.Name, c.dev.Name(), err))
	}
}

// arrivalOf is the arrival of a message.
func (r *receives) arrivalOf(wc *verbs.WC) *arrival {
	a := &r.arrival
	*a = arrival{length: int(wc.Bytes)}
	a.opcode, a.imm = kindOf(wc)
	return a
}

// failedReceive is the error of a receive.
func failedReceive(t receiving.Taken, conn *Connection, wc *verbs.WC) *TaskError {
	err := &TaskError{Op: OpReceive, Status: wc.Status, Connection: conn, VendorError: wc.VendorError}
	if wc.Status == verbs.StatusLocalLengthError {
		err.advice = receiverOf(t).lengthAdvice()
	}
	return err
}

// closeShared destroys the shared receive queue. Its error says that the device may still use
// the memory of receives.
func (r *receives) closeShared() error {
	err := r.CloseShared()
	if err == nil {
		return nil
	}
	r.core.control.Log().Warn().Err(err).Msg("failed to close the shared receive queue")
	if errors.Is(err, verbs.ErrNoDevice) {
		return nil
	}
	return lane.Kept("the shared receive queue", err)
}

// close implements part.
func (r *receives) close() error { return r.Close(r.core.kept != nil) }
