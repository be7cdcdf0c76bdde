package sample

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/oob"
)

// route is what the flags say about the way of descriptors.
type route struct {
	oob                   string
	local, remote, memory string
	interactive           bool
}

func (r *route) flags(f *Flags, p Program) {
	f.String(&r.oob, "", "oob", "WAY", "how descriptors travel: "+oob.Ways)
	f.String(&r.local, "ld", "local-descriptor-path", "FILE", "write our connection descriptor to FILE, instead of -oob")
	f.String(&r.remote, "re", "remote-descriptor-path", "FILE", "read the peer's connection descriptor from FILE")
	switch {
	case p.Memory == NoMemory:
	case p.Memory.imports():
		f.String(&r.memory, "m", "remote-resource-descriptor-path", "FILE", fmt.Sprintf("read the descriptor of the peer's %v from FILE", p.Memory))
	default:
		f.String(&r.memory, "m", "remote-resource-descriptor-path", "FILE", fmt.Sprintf("write the descriptor of our %v to FILE", p.Memory))
	}
	f.add("", "interactive", "", "with -ld and -re: wait for Enter rather than for the peer's files",
		func(name string) { f.set.BoolVar(&r.interactive, name, false, "") })
}

// open makes the way, and says whether a person may have to do something before the
// peer has our descriptors.
func (r *route) open(f *Flags, p Program, files stdio) (way oob.Way, byHand bool, err error) {
	if r.local != "" || r.remote != "" || r.memory != "" {
		switch {
		case f.wasSet("oob"):
			return nil, false, errors.New("-oob excludes -ld, -re and -m")
		case r.local == "" || r.remote == "":
			return nil, false, errors.New("-ld and -re are needed together")
		case r.memory == "" && p.Memory != NoMemory:
			return nil, false, fmt.Errorf("-ld and -re need -m, for the descriptor of the %v", p.Memory)
		}
		names := oob.Files{Local: r.local, Remote: r.remote, Resource: r.memory}
		if r.interactive {
			names.Enter = files.in
		}
		if way, err = names.Way(); err != nil {
			err = fmt.Errorf("-ld, -re and -m: %w", err)
		}
		return way, true, err
	}
	if r.interactive {
		return nil, false, errors.New("-interactive needs -ld and -re")
	}
	if r.oob == "stdio" {
		return oob.Stdio(files.in, files.out), true, nil
	}
	if way, err = oob.Parse(r.oob); err != nil {
		err = fmt.Errorf("-oob %s: %w", r.oob, err)
	}
	return way, false, err
}

// peer makes the other program, as the flags say it is to be found.
func (s *Session) peer(way oob.Way) (*oob.Peer, error) {
	p, role := s.program, oob.Requester
	if p.Role == Responder {
		role = oob.Responder
	}
	return oob.New(way, oob.Config{
		Name: p.Name, Peer: p.Peer, Role: role, Expect: p.Memory.expects(), Log: s.Log,
		Notify: func(line string) { _, _ = fmt.Fprintf(s.files.err, "%s: %s\n", p.Name, line) },
	})
}
