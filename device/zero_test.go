package device

import (
	"testing"

	"github.com/verbena-rdma/verbena/internal/zerotest"
)

func TestZeroValues(t *testing.T) { zerotest.Check(t, &Description{}, &PortDescription{}) }
