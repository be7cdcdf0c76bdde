package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// withWaits prepares a player that waits.
func withWaits(p *player) (err error) {
	if p.sends, err = p.rdma.Pool(ballTasks, pe.Done, pe.Failed); err != nil {
		return err
	}
	if p.receiver, err = await.NewReceiver(p.rdma, ballTasks, ballSize); err != nil {
		return err
	}
	p.closer = append(p.closer, p.receiver.Close)
	return nil
}

// waiting plays in the calling goroutine, while another one drives the engine.
func waiting(ctx context.Context, p *player) (err error) {
	driving, end := context.WithCancel(context.Background())
	driven := make(chan error, 1)
	go func() { driven <- await.Run(driving, p.engine) }()
	defer func() {
		end()
		if e := <-driven; !errors.Is(e, context.Canceled) {
			err = errors.Join(err, e)
		}
	}()
	if err := await.State(ctx, p.rdma, pe.Running); err != nil {
		return err
	}
	if p.first {
		if err := p.sendAndWait(ctx); err != nil {
			return err
		}
	}
	for msg, err := range p.receiver.Messages(ctx) {
		if err != nil {
			return err
		}
		ball := binary.NativeEndian.Uint64(msg.Bytes())
		if p.first {
			if ball != p.ball {
				return fmt.Errorf("ball %d came back as %d", p.ball, ball)
			}
			if !p.returned() {
				break
			}
			ball++
		}
		p.ball = ball
		if err := p.sendAndWait(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *player) sendAndWait(ctx context.Context) error {
	p.hit = time.Now()
	return await.Task(ctx, p.engine, func() (*rdma.Task, error) {
		b := p.source(0)
		binary.NativeEndian.PutUint64(b.Bytes(), p.ball)
		return p.sends.Send(p.conn, b)
	}, nil)
}
