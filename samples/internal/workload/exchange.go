package main

import (
	"context"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

// peer is the way to the other end: descriptors there and back and, from requester to
// responder, how it ended. This file alone knows how they travel.
type peer struct {
	session *sample.Session
	end     func(ok bool) error
}

// descriptors are those of connections, in their order, and of what the responder
// shares: memory, or a sync event.
type descriptors = sample.Descriptors

func newPeer(ctx context.Context, s settings) (*peer, error) {
	program := sample.Program{Role: sample.Responder, Name: s.operation.name + "_responder", Peer: s.operation.name + "_requester"}
	program.Memory = map[shares]sample.Memory{memory: sample.ExportsMemory, event: sample.ExportsEvent}[s.operation.shares]
	if s.requester {
		program.Role, program.Name, program.Peer = sample.Requester, program.Peer, program.Name
		program.Memory = map[shares]sample.Memory{memory: sample.ImportsMemory, event: sample.ImportsEvent}[s.operation.shares]
	}
	session, end, err := sample.Open(ctx, program, s.oob, s.log)
	return &peer{session, end}, err
}

// exchange gives the other end our descriptors; then gets its own, on the goroutine of
// the engine.
func (p *peer) exchange(engine *pe.Engine, ours descriptors, then func(theirs descriptors, err error)) {
	p.session.Exchange(engine, ours, then)
}

// done has then run when the requester has ended: with an error if it has failed.
func (p *peer) done(engine *pe.Engine, then func(error)) { p.session.PeerDone(engine, then) }

// watch has a responder's context end when its connection fails, and when the
// requester closes it without reporting how it ended.
func (p *peer) watch(r *rdma.Context) { p.session.EndWithPeer(r) }

// close reports how this end ended, if it is the requester.
func (p *peer) close(ok bool) error { return p.end(ok) }
