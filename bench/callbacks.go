package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// withCallbacks prepares a player that is called back.
func withCallbacks(p *player) (err error) {
	if p.sends, err = p.rdma.Pool(ballTasks, p.sent, func(t *rdma.Task, err error) {
		p.fail(err)
		p.sent(t)
	}); err != nil {
		return err
	}
	if p.recvs, err = p.rdma.ReceivePool(ballTasks, p.received, func(t *rdma.ReceiveTask, err error) {
		p.fail(err)
		p.check(t.Free())
	}); err != nil {
		return err
	}
	p.rdma.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Running:
			p.check(p.begun())
		case pe.Stopping:
			p.check(rdma.FreeAll(p.idle))
			p.idle = nil
		}
	})
	return nil
}

// begun makes all tasks; the first player sends.
func (p *player) begun() error {
	for i := range ballTasks {
		recv, err := p.recvs.Alloc(p.inbox.Alloc())
		if err != nil {
			return err
		}
		if err := recv.Submit(); err != nil {
			return errors.Join(err, recv.Free())
		}
		send, err := p.sends.Send(p.conn, p.source(i))
		if err != nil {
			return err
		}
		p.idle = append(p.idle, send)
	}
	if p.first {
		return p.send()
	}
	return nil
}

// send sends the ball.
func (p *player) send() error {
	last := len(p.idle) - 1
	if last < 0 {
		return errors.New("the device keeps all sends")
	}
	t := p.idle[last]
	p.idle = p.idle[:last]
	binary.NativeEndian.PutUint64(t.Source().Bytes(), p.ball)
	p.hit = time.Now()
	return t.Submit()
}

func (p *player) sent(t *rdma.Task) {
	if p.rdma.State() != pe.Running {
		p.check(t.Free())
		return
	}
	p.idle = append(p.idle, t)
}

func (p *player) received(t *rdma.ReceiveTask) {
	if p.rdma.State() != pe.Running {
		p.check(t.Free())
		return
	}
	ball := binary.NativeEndian.Uint64(t.Destination().Bytes())
	p.check(t.Submit())
	if p.first {
		if ball != p.ball {
			p.check(fmt.Errorf("ball %d came back as %d", p.ball, ball))
		}
		if !p.returned() {
			p.check(p.rdma.Stop())
			return
		}
		ball++
	}
	p.ball = ball
	p.check(p.send())
}

// fail takes the error of a task, but of one that was flushed: it is not the cause.
func (p *player) fail(err error) {
	if !errors.Is(err, rdma.ErrFlushed) {
		p.check(err)
	}
}

// check ends the game with an error.
func (p *player) check(err error) { p.rdma.Fail(err) }
