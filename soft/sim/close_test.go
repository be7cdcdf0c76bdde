package sim_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// A server closes each connection once its answer has arrived. The client's question has been
// acknowledged, but the acknowledgement may be lost. Its send succeeds even so.
func TestCloseAfterTheAnswer(t *testing.T) {
	sim.Check(t, 5, func(s *sim.Sim) {
		const questions = 20
		s.SetDefaultLink(sim.LinkConfig{Latency: 3 * time.Microsecond, Loss: 0.05, Duplicate: 0.05})
		server, client := s.Host("server"), s.Host("client")
		server.Run(func(ctx context.Context, dev verbs.Device) error {
			return withEngine(ctx, dev, rdma.Config{MaxConnections: questions}, func(ctx context.Context, r *rdma.Connections, receive *await.Receiver) error {
				if err := listen(ctx, r); err != nil {
					return err
				}
				for m, err := range receive.Messages(ctx) {
					if err != nil {
						return err
					}
					if err := sendByte(ctx, dev, m.Connection()); err != nil {
						return err
					}
					if err := await.Func(ctx, r.Engine(), m.Connection().Close); err != nil {
						return err
					}
				}
				return nil
			})
		})
		answers := 0
		client.Run(func(ctx context.Context, dev verbs.Device) error {
			return withEngine(ctx, dev, rdma.Config{MaxConnections: questions}, func(ctx context.Context, r *rdma.Connections, receive *await.Receiver) error {
				for range questions {
					if _, err := ask(ctx, r, receive, server); err != nil {
						return err
					}
					answers++
				}
				return nil
			})
		})
		s.RunUntil(func() bool { return answers == questions }, time.Minute)
		require.Equal(s, questions, answers)
	})
}

// ask connects to a server, sends it a question, and waits for its answer.
func ask(ctx context.Context, r *rdma.Connections, receive *await.Receiver, server *sim.Host) (*rdma.Connection, error) {
	conn, err := await.Dial(ctx, r, server.Addr().String()+":1", rdma.DialConfig{})
	if err != nil {
		return nil, err
	}
	if err := sendByte(ctx, r.Device(), conn); err != nil {
		return nil, err
	}
	_, err = receive.Receive(ctx)
	return conn, err
}

// sendByte sends one byte, and waits until it is acknowledged.
func sendByte(ctx context.Context, dev verbs.Device, conn *rdma.Connection) (err error) {
	mem, err := mmap.Alloc(dev, 1, mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mem.Close()) }()
	return await.Send(ctx, conn, bufinv.Source(mem, 0, 1))
}

// A client closes without serving the server's requests. They fail before the server's device
// reports the end of the connection. It was closed all the same, and not lost.
func TestCloseOfAPeerThatServesNothing(t *testing.T) {
	sim.Check(t, 5, func(s *sim.Sim) {
		s.SetDefaultLink(sim.LinkConfig{Latency: time.Millisecond})
		server, client := s.Host("server"), s.Host("client")
		var failure error
		server.Run(func(ctx context.Context, dev verbs.Device) error {
			cfg := rdma.Config{AckTimeout: 16 * time.Millisecond}
			return withEngine(ctx, dev, cfg, func(ctx context.Context, r *rdma.Connections, receive *await.Receiver) error {
				if err := listen(ctx, r); err != nil {
					return err
				}
				m, err := receive.Receive(ctx)
				if err != nil {
					return err
				}
				for failure == nil {
					failure = sendByte(ctx, dev, m.Connection())
				}
				return nil
			})
		})
		client.Run(func(ctx context.Context, dev verbs.Device) error {
			return withEngine(ctx, dev, rdma.Config{CloseTimeout: rdma.None}, func(ctx context.Context, r *rdma.Connections, receive *await.Receiver) error {
				conn, err := ask(ctx, r, receive, server)
				if err != nil {
					return err
				}
				if err := await.Func(ctx, r.Engine(), conn.Close); err != nil {
					return err
				}
				<-ctx.Done()
				return nil
			})
		})
		s.RunUntil(func() bool { return failure != nil }, time.Minute)
		require.ErrorIs(s, failure, rdma.ErrPeerClosed)
	})
}
