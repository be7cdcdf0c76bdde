package lab3

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

// Run starts a context on the device that the flags select, and runs steps on a goroutine of
// its own while it drives the engine. It returns when the connection is closed, or when the
// context or steps has failed.
func Run(ctx context.Context, s *sample.Session, steps func(context.Context, *sample.Session, *rdma.Connections, *Messenger) error) (err error) {
	h, err := s.Open(rdma.Config{EndWithLastConnection: true})
	if err != nil {
		return err
	}
	defer sample.Close(&err, h.Close) // and the memory
	messages, err := New(h.Device, h.RDMA)
	if err := errors.Join(err, h.RDMA.Start()); err != nil {
		return err
	}
	defer sample.Close(&err, messages.Close)
	var running sync.WaitGroup
	var failed error
	running.Go(func() {
		failed = steps(ctx, s, h.RDMA, messages)
		_ = h.Engine.Do(func() { h.RDMA.Fail(failed) }) // nil does nothing; it fails only once the engine is closed
	})
	err = h.Engine.Run(ctx)
	running.Wait()
	return cmp.Or(err, failed)
}
