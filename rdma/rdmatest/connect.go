// Package rdmatest has what tests of programs on package rdma need.
package rdmatest

import (
	"errors"

	"github.com/verbena-rdma/verbena/rdma"
)

// Connect connects two contexts of one program, which may be the same, by descriptors, and
// returns the two ends. Call it where Export is legal, on the goroutine that drives the engines,
// or before they are driven. The connections become Ready when the engines have been driven. If
// it fails, the connections that it has made are closed.
func Connect(a, b *rdma.Connections) (atA, atB *rdma.Connection, err error) {
	atA, toA, err := a.Export()
	if err != nil {
		return nil, nil, err
	}
	atB, toB, err := b.Export()
	if err != nil {
		return nil, nil, errors.Join(err, atA.Close())
	}
	if err = atA.Connect(toB); err == nil {
		err = atB.Connect(toA)
	}
	if err != nil {
		return nil, nil, errors.Join(err, atA.Close(), atB.Close())
	}
	return atA, atB, nil
}
