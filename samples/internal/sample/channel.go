package sample

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// pollInterval is how often files are looked for.
const pollInterval = 10 * time.Millisecond

// channel is a way for descriptors to travel between the programs of a pair.
type channel interface {
	// exchange gives the peer our descriptors, and waits for its own.
	exchange(ctx context.Context, ours Descriptors) (Descriptors, error)
	// peerDone waits for the peer, a requester, to say how it ended. Its error
	// is errPeerFailed if the peer has failed.
	peerDone(ctx context.Context) error
	// close says how we ended, if we are the requester, and removes what was
	// made. It is called once, after all else.
	close(ok bool) error
	// byHand says that a person may have to do something before the peer has our
	// descriptors.
	byHand() bool
	// String says which way it is.
	String() string
}

// route is what the flags say about the way of descriptors.
type route struct {
	oob                   string
	local, remote, memory string
	interactive           bool
}

func (r *route) flags(f *Flags, p Program) {
	f.String(&r.oob, "", "oob", "WAY", "how descriptors travel: dir, dir:PATH, tcp:HOST:PORT or stdio")
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

// open makes the channel, and checks what can be checked before it is used.
func (r *route) open(f *Flags, s *Session) (channel, error) {
	p := s.program
	if r.local != "" || r.remote != "" || r.memory != "" {
		switch {
		case f.wasSet("oob"):
			return nil, errors.New("-oob excludes -ld, -re and -m")
		case r.local == "" || r.remote == "":
			return nil, errors.New("-ld and -re are needed together")
		case r.memory == "" && p.Memory != NoMemory:
			return nil, fmt.Errorf("-ld and -re need -m, for the descriptor of the %v", p.Memory)
		case r.local == r.remote || r.local == r.memory || r.remote == r.memory:
			return nil, errors.New("-ld, -re and -m name the same file twice")
		}
		return newFiles(s, *r), nil
	}
	if r.interactive {
		return nil, errors.New("-interactive needs -ld and -re")
	}
	kind, place, given := strings.Cut(r.oob, ":")
	switch {
	case kind == "dir" && !given:
		return newDir(s, defaultDir(), true), nil
	case kind == "dir" && place != "":
		return newDir(s, place, false), nil
	case kind == "tcp" && place != "":
		return newTCP(s, place)
	case r.oob == "stdio":
		return newStdio(s), nil
	}
	return nil, fmt.Errorf("-oob %q is none of dir, dir:PATH, tcp:HOST:PORT and stdio", r.oob)
}

// poll calls look until it is done or fails, or ctx ends.
func poll(ctx context.Context, look func() (done bool, err error)) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		if done, err := look(); done || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// remove removes a file that may be gone already.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
