package overhead

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/verbena-rdma/verbena/await"
)

// measureAwait measures calls that wait for their task, from one goroutine and from many, while
// another one drives the engine.
func measureAwait(ctx context.Context, b *bench) (err error) {
	p, err := newPair(b.device, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	ctx, cancel := context.WithCancel(ctx)
	ran := make(chan error, 1)
	go func() { ran <- await.Run(ctx, p.engine) }()
	defer func() {
		cancel()
		if e := <-ran; !errors.Is(e, context.Canceled) {
			err = errors.Join(err, e)
		}
	}()
	if err := b.measure("await, a function on the engine's goroutine", 1, func() error {
		return await.Func(ctx, p.engine, func() error { return nil })
	}); err != nil {
		return err
	}
	write := func() error { return await.Write(ctx, p.conn, p.source(), p.destination()) }
	if err := b.measure("await write, one caller/1", 1, write); err != nil {
		return err
	}
	for _, n := range []int{16, 64} {
		const each = 100
		// The callers live as long as the measurement: to start them is not part of it.
		again, ended := make(chan struct{}), make(chan error, n)
		var callers sync.WaitGroup
		for range n {
			callers.Go(func() {
				for range again {
					var err error
					for i := 0; i < each && err == nil; i++ {
						err = write()
					}
					ended <- err
				}
			})
		}
		err := b.measure(fmt.Sprintf("await write, %d callers", n), n*each, func() error {
			for range n {
				again <- struct{}{}
			}
			var errs []error
			for range n {
				errs = append(errs, <-ended)
			}
			return errors.Join(errs...)
		})
		close(again)
		callers.Wait()
		if err != nil {
			return err
		}
	}
	return nil
}
