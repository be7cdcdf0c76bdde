package rdmatest_test

import (
	"context"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rdma/rdmatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The two ends of a connection in one program.
func Example() {
	dev, err := device.Open("soft-lo")
	if err != nil {
		fmt.Println(err)
		return
	}
	engine := pe.New(pe.Config{})
	r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	var a, b *rdma.Connection
	r.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Starting:
			var err error
			a, b, err = rdmatest.Connect(r, r)
			r.Fail(err)
		case pe.Running:
			fmt.Println(a.State(), b.State(), a.PeerQPN() == b.QPN())
			r.Fail(r.Stop())
		}
	})
	if err := r.Start(); err != nil {
		fmt.Println(err)
	}
	if err := engine.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	for _, c := range []interface{ Close() error }{r, engine, dev} {
		if err := c.Close(); err != nil {
			fmt.Println(err)
		}
	}
	// Output: Ready Ready true
}
