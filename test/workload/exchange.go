package main

import "github.com/verbena-rdma/verbena/oob"

// newPeer returns the peer for the exchange: the other end of the same operation.
func newPeer(s settings) (*oob.Peer, error) {
	c := oob.Config{
		Name: s.operation.name + "_responder", Peer: s.operation.name + "_requester",
		Role: oob.Responder, Expect: &oob.Expect{}, Log: s.log,
	}
	if s.requester {
		c.Name, c.Peer, c.Role = c.Peer, c.Name, oob.Requester
	}
	if s.requester || s.operation.mutual {
		switch s.operation.shares {
		case memory:
			c.Expect.Maps = 1
		case event:
			c.Expect.Events = 1
		}
	}
	return oob.Open(s.oob, c)
}
