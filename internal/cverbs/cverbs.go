// Package cverbs has what the C library takes from the software device beyond package verbs:
// functions of libibverbs that no Go program needs. The objects of software devices implement
// these interfaces; those of adapters do not.
package cverbs

import "github.com/verbena-rdma/verbena/verbs"

// PD is a protection domain.
type PD interface {
	verbs.PD
	// RegMRAt is RegMR of a region whose first byte has the address iova in work requests of
	// this program and of peers (ibv_reg_mr_iova(3)). A region that runs past the end of the
	// address space is an error that matches ErrInvalid. With onDemand, parts of the memory may be
	// inaccessible, now or later (on-demand paging). An RC peer that names them gets a remote access
	// error, an SRD peer that of a bad address; messages of UC are lost.
	RegMRAt(mem []byte, iova uint64, access verbs.Access, onDemand bool) (verbs.MR, error)
	// Prefetch is ibv_advise_mr(3) for an entry, with the errors that its manual page gives. It
	// accesses each page if wait is true. write: the memory is to be written.
	Prefetch(e verbs.SGE, write, wait bool) error
}

// MRChange says what changes in a memory region. Fields that are zero change nothing.
type MRChange struct {
	PD  verbs.PD // nil: the same domain
	Mem []byte   // nil: the same memory; otherwise the region's addresses are those of its bytes
	// ChangeAccess: the region gets the rights in Access, and is on demand only if OnDemand is set.
	ChangeAccess bool
	Access       verbs.Access // the new rights
	OnDemand     bool
	// NewKey: the region gets other keys. What has the old ones reaches the memory no more.
	NewKey bool
}

// MR is a memory region that can change (IBTA 11.2.7.7, ibv_rereg_mr(3)).
type MR interface {
	verbs.MR
	// Reregister changes the region in one step, with RegMR's rules. Without NewKey, the keys stay.
	// When it has returned, the device neither reads nor writes memory that is no longer in the
	// region; work requests under way that use the region may fail, and watches of it have ended. A
	// refused change changes nothing. The error matches ErrInUse while memory windows are bound to
	// the region.
	Reregister(change MRChange) error
}

// CQ is a completion queue.
type CQ interface {
	verbs.CQ
	// Resize changes the capacity (IBTA 11.2.8.3), with the limits of CQInit.Capacity. If the
	// queue holds more completions than that, it fails with an error that matches ErrInvalid.
	Resize(capacity int) error
	// Pending is the number of completions that have not been polled.
	Pending() int
	// ArmNext is the request of ibv_req_notify_cq(3), as mlx4 and mlx5 have it: it asks for one call
	// of the function given to OnCompletion. Completions that are already there and have not yet
	// caused a call cause it at once. With solicitedOnly, the same completions count as in Arm. The
	// queue is armed, whatever it holds.
	ArmNext(solicitedOnly bool) error
	// ArmAwake is ArmNext for a program that then calls Progress until it is notified. This spares
	// the device waking its goroutines. If the program does not call Progress, they take over
	// after a millisecond.
	ArmAwake(solicitedOnly bool) error
	// Progress makes progress, as Poll does. It takes no completions. sleeps: the program calls
	// nothing more until it is notified, so the device's goroutines take over at once.
	Progress(sleeps bool) error
}

// QP is a queue pair.
type QP interface {
	verbs.QP
	// ActAsAdapter makes an RC or XRC queue pair do what programs know from adapters. When the
	// process of its peer ends, it stays in its state, unless a request is outstanding. A request
	// fails only after the time that all repetitions by Timeout and RetryCount take. It is called
	// before the queue pair is ready to send.
	ActAsAdapter()
}
