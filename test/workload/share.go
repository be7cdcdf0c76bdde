package main

import (
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
)

// shared is a responder that submits nothing: its peer reads or writes its memory.
type shared struct {
	*end
	perm    mmap.Permission
	streams []*stream // by connection
}

// provides makes a responder whose memory is read.
func provides(e *end) role { return &shared{end: e, perm: mmap.RemoteRead} }

// takes makes a responder whose memory is written.
func takes(e *end) role { return &shared{end: e, perm: mmap.RemoteWrite} }

func (s *shared) open() (err error) {
	if s.memory, err = s.alloc(mmap.LocalReadWrite | s.perm); err != nil {
		return err
	}
	s.streams = s.newStreams()
	if s.perm == mmap.RemoteRead {
		for i, p := range s.streams {
			p.fill(s.region(s.memory, i))
		}
	}
	return nil
}

// begin waits while the peer works. RDMA does not report when the peer has finished: its
// program does.
func (s *shared) begin(*oob.Answer) error {
	s.endWithPeer(func() error {
		for i, p := range s.streams {
			if s.perm == mmap.RemoteWrite {
				if err := p.check(s.region(s.memory, i)); err != nil {
					return err
				}
			}
			s.print("moved on connection %d: %v", i, p)
		}
		return nil
	})
	return nil
}
