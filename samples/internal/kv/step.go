package kv

import (
	"errors"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// Step is one step of a worker: a task, and the server's answer if one is expected.
type Step struct {
	Answer uint32 // the slot in the server's last answer

	client *Client
	left   int          // of the two: how many have yet to happen
	then   func() error // called after that
}

// NewStep returns the step of one worker.
func (c *Client) NewStep() Step { return Step{client: c} }

// Submit submits a task, and calls then when the task has completed.
func (s *Step) Submit(t *rdma.Task, err error, then func() error) error {
	return s.submit(t, err, 1, then)
}

// Ask submits a task, and calls then when the task has completed and the answer has arrived.
func (s *Step) Ask(t *rdma.Task, err error, then func() error) error {
	return s.submit(t, err, 2, then)
}

func (s *Step) submit(t *rdma.Task, err error, left int, then func() error) error {
	s.left, s.then = left, then
	return pe.SubmitOrFree(t, err, func(t *rdma.Task, err error) {
		s.client.RDMA.Fail(errors.Join(err, t.Free()))
		s.done()
	})
}

// Answered handles the server's answer.
func (s *Step) Answered(slot uint32) {
	s.Answer = slot
	s.done()
}

func (s *Step) done() {
	s.left--
	if s.left == 0 && s.client.RDMA.State() == pe.Running {
		s.client.RDMA.Fail(s.then())
	}
}
