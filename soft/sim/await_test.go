package sim_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// A server and clients whose goroutines wait for each operation.
func TestAwait(t *testing.T) {
	sim.Check(t, 10, func(s *sim.Sim) {
		s.SetDefaultLink(sim.LinkConfig{Latency: 3 * time.Microsecond, Jitter: 2 * time.Microsecond, Loss: 0.005})
		server := s.Host("server")
		got := map[string]int{}
		server.Run(func(ctx context.Context, dev verbs.Device) error {
			return withEngine(ctx, dev, rdma.Config{MaxConnections: 3}, func(ctx context.Context, r *rdma.Connections, receive *await.Receiver) error {
				if err := listen(ctx, r); err != nil {
					return err
				}
				for m, err := range receive.Messages(ctx) {
					if err != nil {
						return err
					}
					got[string(m.Bytes())]++
				}
				return nil
			})
		})
		for i := range 3 {
			s.Host(fmt.Sprint("client", i)).Run(func(ctx context.Context, dev verbs.Device) error {
				return withEngine(ctx, dev, rdma.Config{}, func(ctx context.Context, r *rdma.Connections, _ *await.Receiver) error {
					conn, err := await.Dial(ctx, r, server.Addr().String()+":1", rdma.DialConfig{})
					if err != nil {
						return err
					}
					mem, err := mmap.Alloc(dev, 64, mmap.LocalReadWrite)
					if err != nil {
						return err
					}
					bufs, err := bufinv.New(1)
					if err != nil {
						return err
					}
					for n := range 20 {
						text := fmt.Sprint(i, " ", n)
						copy(mem.Bytes(), text)
						if err := await.Send(ctx, conn, bufs.Source(mem, 0, len(text))); err != nil {
							return err
						}
					}
					<-ctx.Done()
					return errors.Join(bufs.Close())
				})
			})
		}
		s.RunUntil(func() bool { return len(got) == 60 }, time.Second)
		for text, n := range got {
			require.Equal(s, 1, n, text)
		}
	})
}

// listen listens on port 1.
func listen(ctx context.Context, r *rdma.Connections) error {
	return await.Func(ctx, r.Engine(), func() error {
		_, err := r.Listen(":1", rdma.ListenConfig{})
		return err
	})
}

// withEngine runs f with a context that a goroutine drives.
func withEngine(ctx context.Context, dev verbs.Device, cfg rdma.Config, f func(context.Context, *rdma.Connections, *await.Receiver) error) (err error) {
	engine := pe.New(pe.Config{})
	defer func() { err = errors.Join(err, engine.Close()) }()
	cfg.Engine = engine
	r, err := rdma.New(dev, cfg)
	if err != nil {
		return err
	}
	receiver, err := await.NewReceiver(r, 8, 64)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, receiver.Close()) }()
	if err := r.Start(); err != nil {
		return err
	}
	driving, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- await.Run(driving, engine) }()
	err = f(ctx, r, receiver)
	stop()
	<-stopped
	return err
}
