// Package pair runs the two programs of a pair as processes of their own, and
// compares what they print. The demo and the tests are made of it.
package pair

import (
	"fmt"
	"path/filepath"
	"strconv"
)

// Pair names two programs that belong together.
type Pair struct {
	Name      string
	Requester string
	Responder string
	// Memory says that the responder exports memory, or a sync event.
	Memory bool
	// Text is the flag for the text, of the program that provides the data; empty
	// for atomics and sync events, which move values.
	Text string
	// FromResponder says that the responder provides the data.
	FromResponder bool
	// Messages is how many times the data is moved.
	Messages int
}

// All returns the pairs.
func All() []Pair {
	return []Pair{
		requesters("rdma_read", "-r", true),
		requesters("rdma_write", "-w", false),
		requesters("rdma_write_immediate", "-w", false),
		{Name: "rdma_send, rdma_receive", Requester: "rdma_send", Responder: "rdma_receive", Text: "-s", Messages: 1},
		{Name: "rdma_send_immediate, rdma_receive_immediate", Requester: "rdma_send_immediate", Responder: "rdma_receive_immediate", Text: "-s", Messages: 1},
		{Name: "rdma_multi_conn_send, rdma_multi_conn_receive", Requester: "rdma_multi_conn_send", Responder: "rdma_multi_conn_receive", Text: "-s", Messages: 2},
		requesters("rdma_atomic_cmp_swp", "", false),
		requesters("rdma_atomic_fetch_add", "", false),
		syncEvent(),
	}
}

func requesters(name, text string, fromResponder bool) Pair {
	return Pair{
		Name: name, Requester: name + "_requester", Responder: name + "_responder",
		Memory: true, Text: text, FromResponder: fromResponder, Messages: 1,
	}
}

// syncEvent sets a value, adds to it, and sets it again.
func syncEvent() Pair {
	p := requesters("rdma_sync_event", "", false)
	p.Messages = 3
	return p
}

// Atomic reports whether the pair moves values rather than data.
func (p Pair) Atomic() bool { return p.Text == "" }

// Way is a way for the descriptors to travel.
type Way string

// The ways.
const (
	Dir   Way = "dir"
	TCP   Way = "tcp"
	Files Way = "files"
	Stdio Way = "stdio"
)

// Ways returns all ways.
func Ways() []Way { return []Way{Dir, TCP, Files, Stdio} }

// NoBytes is the Size of messages without any.
const NoBytes = -1

// Options says how a pair is to be run.
type Options struct {
	Bin     string // the folder of the programs
	Scratch string // a folder for descriptors
	Way     Way
	Address string // HOST:PORT for TCP
	Size    int    // bytes of a pattern; zero: a text; NoBytes: none
	SGE     int    // buffers for each task where a program has a list; zero: one
	// What each program is given besides, and the command that starts it, if it
	// is not to be started directly.
	RequesterArgs, ResponderArgs     []string
	RequesterPrefix, ResponderPrefix []string
}

// Commands returns the command lines of the two programs.
func (o *Options) Commands(p Pair) (requester, responder []string, err error) {
	requester = append(append(requester, o.RequesterPrefix...), filepath.Join(o.Bin, p.Requester))
	responder = append(append(responder, o.ResponderPrefix...), filepath.Join(o.Bin, p.Responder))
	switch o.Way {
	case Dir:
		requester = append(requester, "-oob", "dir:"+o.Scratch)
		responder = append(responder, "-oob", "dir:"+o.Scratch)
	case TCP:
		requester = append(requester, "-oob", "tcp:"+o.Address)
		responder = append(responder, "-oob", "tcp:"+o.Address)
	case Files:
		a, b := filepath.Join(o.Scratch, "requester"), filepath.Join(o.Scratch, "responder")
		requester = append(requester, "-ld", a, "-re", b)
		responder = append(responder, "-ld", b, "-re", a)
		if p.Memory {
			m := filepath.Join(o.Scratch, "memory")
			requester = append(requester, "-m", m)
			responder = append(responder, "-m", m)
		}
	case Stdio:
		requester = append(requester, "-oob", "stdio")
		responder = append(responder, "-oob", "stdio")
	default:
		return nil, nil, fmt.Errorf("there is no way %q for descriptors", o.Way)
	}
	if o.Size != 0 && !p.Atomic() {
		size := strconv.Itoa(max(o.Size, 0))
		requester = append(requester, "-size", size)
		responder = append(responder, "-size", size)
	}
	if o.SGE > 0 && !p.Atomic() {
		requester = append(requester, "-sge", strconv.Itoa(o.SGE))
		if !p.Memory {
			responder = append(responder, "-sge", strconv.Itoa(o.SGE))
		}
	}
	return append(requester, o.RequesterArgs...), append(responder, o.ResponderArgs...), nil
}
