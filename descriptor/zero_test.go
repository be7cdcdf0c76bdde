package descriptor

import (
	"testing"

	"github.com/verbena-rdma/verbena/internal/zerotest"
)

func TestZeroValues(t *testing.T) {
	zerotest.Check(t, &Bundle{}, &Writer{}, &Reader{}, &Scanner{}, new(Kind))
}
