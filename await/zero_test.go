package await_test

import (
	"testing"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/internal/zerotest"
)

func TestZeroValues(t *testing.T) {
	zerotest.Check(t, &await.Message{}, &await.Pending{}, &await.Receiver{})
}
