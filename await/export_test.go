package await

import (
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/rdma"
)

// NewWriteTask returns what a call of Write allocates its task with.
func NewWriteTask(conn *rdma.Connection, src, dst *bufinv.Buf) func() (*rdma.Task, error) {
	o := newOperation().(*operation)
	o.operands, o.conn = operands{op: rdma.OpWrite, local: src, remote: dst}, conn
	return o.allocate
}
