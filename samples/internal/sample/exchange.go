package sample

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/verbs"
)

// Memory says whether the program exports or imports the descriptor of a memory map, or that
// of a sync event.
type Memory int

// The directions of the descriptor of a memory map, and of a sync event.
const (
	NoMemory Memory = iota
	ExportsMemory
	ImportsMemory
	ExportsEvent
	ImportsEvent
)

func (m Memory) imports() bool { return m == ImportsMemory || m == ImportsEvent }

// expects returns what the peer has to offer, and nothing else.
func (m Memory) expects() *oob.Expect {
	switch m {
	case ImportsMemory:
		return &oob.Expect{Maps: 1}
	case ImportsEvent:
		return &oob.Expect{Events: 1}
	}
	return &oob.Expect{}
}

// String names the object that the descriptor is of.
func (m Memory) String() string {
	if m == ExportsEvent || m == ImportsEvent {
		return "sync event"
	}
	return "memory"
}

// exchangeFlags has the flags for the exchange of descriptors.
type exchangeFlags struct {
	oob                   string
	local, remote, memory string
	interactive           bool

	cm       bool // by connection manager
	port     int
	server   string
	kind     string // type of the server's address
	isServer bool   // this program is the server of several clients
}

func (r *exchangeFlags) define(f *Flags, p Program) {
	f.String(&r.oob, "", "oob", "way", "how descriptors travel: "+oob.Ways)
	f.String(&r.local, "ld", "local-descriptor-path", "file", "write this program's connection descriptor to this file, instead of -oob")
	f.String(&r.remote, "re", "remote-descriptor-path", "file", "read the peer's connection descriptor from this file")
	switch {
	case p.Memory == NoMemory:
	case p.Memory.imports():
		f.String(&r.memory, "m", "remote-resource-descriptor-path", "file", fmt.Sprintf("read the descriptor of the peer's %v from this file", p.Memory))
	default:
		f.String(&r.memory, "m", "remote-resource-descriptor-path", "file", fmt.Sprintf("write the descriptor of this program's %v to this file", p.Memory))
	}
	if p.Transport == verbs.RC {
		r.addressFlags(f, p)
	}
	f.Bool(&r.interactive, "", "interactive", "with -ld and -re: wait for Enter rather than for the peer's files")
}

// addressFlags defines the flags of connections by address.
func (r *exchangeFlags) addressFlags(f *Flags, p Program) {
	f.Bool(&r.cm, "cm", "use-rdma-cm", "connect by address, through the connection manager; no descriptors are exchanged otherwise")
	r.port = 13579
	f.Number(&r.port, "lp", "listen-port", "port", "with -cm: the port that the server listens on (default 13579)", 1, 1<<16-1)
	if p.Role == Requester || p.MaxConnections > 1 {
		usage := "with -cm: the address of the server, " + p.Peer
		if p.MaxConnections > 1 {
			usage += "; without it, this program is the server, and waits for -nc clients"
		}
		f.String(&r.server, "sa", "server-addr", "address", usage)
		f.String(&r.kind, "sat", "server-addr-type", "type", "with -sa: ipv4, ipv6 or gid (default: that of the address)")
	}
}

// open makes the way. manual reports whether a person may have to act before the peer has our
// descriptors.
func (r *exchangeFlags) open(f *Flags, p Program, files stdio) (way oob.Way, manual bool, err error) {
	if r.cm {
		if f.wasSet("oob", "ld", "local-descriptor-path", "re", "remote-descriptor-path", "m", "remote-resource-descriptor-path", "interactive") {
			return way, false, errors.New("-cm excludes -oob, -ld, -re, -m and -interactive")
		}
		way, err = r.byAddress(f, p)
		return way, false, err
	}
	if f.wasSet("lp", "listen-port", "sa", "server-addr", "sat", "server-addr-type") {
		return way, false, errors.New("-lp, -sa and -sat need -cm")
	}
	if r.local != "" || r.remote != "" || r.memory != "" {
		switch {
		case f.wasSet("oob"):
			return way, false, errors.New("-oob excludes -ld, -re and -m")
		case r.local == "" || r.remote == "":
			return way, false, errors.New("-ld and -re are needed together")
		case r.memory == "" && p.Memory != NoMemory:
			return way, false, fmt.Errorf("-ld and -re need -m, for the descriptor of the %v", p.Memory)
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
		return way, false, errors.New("-interactive needs -ld and -re")
	}
	if r.oob == "stdio" {
		return oob.Stdio(files.in, files.out), true, nil
	}
	if way, err = oob.Parse(r.oob); err != nil {
		err = fmt.Errorf("-oob %s: %w", r.oob, err)
	}
	return way, false, err
}

// role returns the role of this program in the exchange.
func (s *Session) role() oob.Role {
	if s.program.Role == Responder {
		return oob.Responder
	}
	return oob.Requester
}

// peer makes the peer that exchanges descriptors over the way.
func (s *Session) peer(way oob.Way, role oob.Role) (*oob.Peer, error) {
	p := s.program
	s.reports = role == oob.Responder
	return oob.New(way, oob.Config{
		Name: p.Name, Peer: p.Peer, Role: role, Expect: p.Memory.expects(), Log: s.Log,
		Notify: func(line string) { s.Say("%s", line) },
	})
}

// byAddress makes the way by connection manager. The responder of a pair is the server. If either
// program can be the server, the absence of -sa makes it one.
func (r *exchangeFlags) byAddress(f *Flags, p Program) (oob.Way, error) {
	port := strconv.Itoa(r.port)
	if r.server == "" {
		switch {
		case r.kind != "":
			return oob.Way{}, errors.New("-sat needs -sa")
		case p.MaxConnections > 1:
			r.isServer = true
		case p.Role == Requester:
			return oob.Way{}, fmt.Errorf("-cm needs -sa, the address of %s", p.Peer)
		}
		return oob.CM(net.JoinHostPort("", port))
	}
	if p.MaxConnections > 1 && f.wasSet("nc", "num-connections") {
		return oob.Way{}, errors.New("-nc is only for the server, which has no -sa; start one client for each connection")
	}
	addr, err := netip.ParseAddr(r.server)
	if ok := map[string]bool{"": true, "ipv4": err != nil || addr.Is4(), "ipv6": err != nil || addr.Is6(), "gid": err == nil && addr.Is6()}[r.kind]; !ok {
		return oob.Way{}, fmt.Errorf("-sa %s, -sat %s: want ipv4, ipv6 or gid, and an address of that type", r.server, r.kind)
	}
	return oob.CM(net.JoinHostPort(r.server, port))
}
