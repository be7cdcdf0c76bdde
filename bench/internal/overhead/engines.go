package overhead

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/readable"
	"github.com/verbena-rdma/verbena/rdma"
)

// measureEngines measures what depends on who drives which engine: both ends on one, which
// sends and receives; an engine that sleeps until its task has completed; two engines on two
// threads.
func measureEngines(_ context.Context, b *bench) (err error) {
	p, err := newPair(b.device, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	messages, err := p.allocAll(func(p *pair) (*rdma.Task, error) { return p.tasks.Send(p.conn, p.source()) })
	if err != nil {
		return err
	}
	for _, n := range batches {
		if err := b.measure(fmt.Sprintf("rdma send and receive/%d", n), n, func() error { return p.exchange(messages[:n]) }); err != nil {
			return err
		}
	}
	if err := rdma.FreeAll(messages); err != nil {
		return err
	}
	writes, err := p.allocAll((*pair).write)
	if err != nil {
		return err
	}
	if err := b.measure("rdma write, both ends on one engine/1", 1, func() error { return p.submit(writes[:1], 0) }); err != nil {
		return err
	}
	if err := b.measure("rdma write, asleep until it completes/1", 1, func() error { return p.writeAsleep(writes[0]) }); err != nil {
		return err
	}
	return p.measureTwo(b, writes)
}

// exchange sends messages, and waits until all have been received.
func (p *pair) exchange(messages []*rdma.Task) error {
	p.received = 0
	if err := p.submit(messages, 0); err != nil {
		return err
	}
	for p.received < len(messages) {
		if _, err := p.engine.Progress(); err != nil {
			return err
		}
	}
	return nil
}

// writeAsleep waits for a write in the engine's file descriptor.
func (p *pair) writeAsleep(t *rdma.Task) error {
	fd, err := p.engine.NotificationFD()
	if err != nil {
		return err
	}
	p.done = 0
	if err := p.engine.Arm(); err != nil {
		return err
	}
	if err := t.Submit(); err != nil {
		return err
	}
	for p.done == 0 {
		if err := readable.Await(fd, time.Minute); err != nil {
			return err
		}
		if _, err := p.engine.Progress(); err != nil {
			return err
		}
		if p.done == 0 {
			if err := p.engine.Arm(); err != nil {
				return err
			}
		}
	}
	return p.failed
}

// measureTwo measures batches of writes on two engines at once. ns are those of all writes.
func (p *pair) measureTwo(b *bench, writes []*rdma.Task) (err error) {
	other, err := newPair(b.device, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.close()) }()
	others, err := other.allocAll((*pair).write)
	if err != nil {
		return err
	}
	const times = 50
	repeat := func(p *pair, tasks []*rdma.Task) error {
		for range times {
			if err := p.submit(tasks, 0); err != nil {
				return err
			}
		}
		return nil
	}
	again, ended := make(chan struct{}), make(chan error, 1)
	defer close(again)
	go func() {
		for range again {
			ended <- repeat(other, others)
		}
	}()
	name := fmt.Sprintf("rdma write, two engines/%d", maxBatch)
	err = b.measure(name, 2*times*maxBatch, func() error {
		again <- struct{}{}
		return errors.Join(repeat(p, writes), <-ended)
	})
	return errors.Join(err, rdma.FreeAll(writes), rdma.FreeAll(others))
}
