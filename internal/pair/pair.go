// Package pair lists the pairs of sample programs, runs each pair as two processes, and
// compares what they print. It also runs pairs of the workload program, which carries out any
// operation with any size and number of buffers. The demo and the tests use it.
package pair

import (
	"fmt"
	"path/filepath"
	"strconv"
)

// Pair names two programs that belong together.
type Pair struct {
	Name      string
	Requester string // its program
	Responder string
	// Operation is the operation of a pair of workload programs; empty for samples.
	Operation string
	// Connections is the number of connections to pass to the programs; zero: their default.
	Connections int
	// Memory: the responder exports memory, or a sync event.
	Memory bool
	// Values: the pair transfers values of 8 bytes, not data of any size.
	Values bool
	// Datagrams: the two make no connection.
	Datagrams bool
	// Messages is the number of transfers.
	Messages int
}

// Samples returns the pairs of samples.
func Samples() []Pair {
	return []Pair{
		requesters("rdma_read"),
		requesters("rdma_write"),
		requesters("rdma_write_immediate"),
		{Name: "rdma_send, rdma_receive", Requester: "rdma_send", Responder: "rdma_receive", Messages: 1},
		{Name: "rdma_send_immediate, rdma_receive_immediate", Requester: "rdma_send_immediate", Responder: "rdma_receive_immediate", Messages: 1},
		{Name: "rdma_multi_conn_send, rdma_multi_conn_receive", Requester: "rdma_multi_conn_send", Responder: "rdma_multi_conn_receive", Messages: 2},
		values(requesters("rdma_atomic_cmp_swp"), 1),
		values(requesters("rdma_atomic_fetch_add"), 1),
		values(requesters("rdma_sync_event"), syncEventValues),
		{Name: "ud_send, ud_receive", Requester: "ud_send", Responder: "ud_receive", Datagrams: true, Messages: 1},
		{Name: "memory_window", Requester: "memory_window_requester", Responder: "memory_window_responder", Messages: 1},
	}
}

// Multicast is a sender to a multicast group, and one receiver.
func Multicast() Pair {
	return Pair{Name: "multicast_send, multicast_receive", Requester: "multicast_send", Responder: "multicast_receive", Datagrams: true, Messages: 1}
}

// syncEventValues is the number of values of a sync event: one by set, one by add, and another
// by set.
const syncEventValues = 3

func requesters(name string) Pair {
	return Pair{Name: name, Requester: name + "_requester", Responder: name + "_responder", Memory: true, Messages: 1}
}

func values(p Pair, messages int) Pair {
	p.Values, p.Messages = true, messages
	return p
}

// Workloads returns the pairs of the workload program: one for each operation, and one
// for sends over two connections.
func Workloads() []Pair {
	return []Pair{
		workload("read"),
		workload("write"),
		workload("write_immediate"),
		workload("send"),
		workload("send_immediate"),
		{Name: "send, 2 connections", Requester: "workload", Responder: "workload", Operation: "send", Connections: 2, Messages: 2},
		values(workload("compare_and_swap"), 1),
		values(workload("fetch_and_add"), 1),
		values(workload("sync_event"), syncEventValues),
	}
}

func workload(operation string) Pair {
	return Pair{Name: operation, Requester: "workload", Responder: "workload", Operation: operation, Messages: 1}
}

// Way is a way to exchange descriptors.
type Way string

// The ways.
const (
	Dir   Way = "dir"
	TCP   Way = "tcp"
	Files Way = "files"
	Stdio Way = "stdio"
	// Group is for programs that join a multicast group, without descriptors.
	Group Way = "group"
)

// Ways returns all ways to exchange descriptors.
func Ways() []Way { return []Way{Dir, TCP, Files, Stdio} }

// Options configures the run of a pair.
type Options struct {
	Bin     string // the folder of the programs
	Scratch string // a folder for descriptors
	Way     Way
	Address string // HOST:PORT for TCP
	Size    int    // bytes that a workload transfers over each connection; samples transfer a text
	SGE     int    // buffers in each task's list in a workload; zero: one
	// The further arguments of each program, and the command that starts it; empty: it
	// is started directly.
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
	case Group:
	default:
		return nil, nil, fmt.Errorf("unknown way %q to exchange descriptors", o.Way)
	}
	if p.Operation != "" {
		shape := o.shape(p)
		requester = append(append(requester, "-as", "requester"), shape...)
		responder = append(append(responder, "-as", "responder"), shape...)
	}
	return append(requester, o.RequesterArgs...), append(responder, o.ResponderArgs...), nil
}

// shape returns the arguments that both programs of a workload get.
func (o *Options) shape(p Pair) []string {
	args := []string{"-op", p.Operation}
	if p.Values {
		return args
	}
	args = append(args, "-size", strconv.Itoa(o.Size), "-sge", strconv.Itoa(max(o.SGE, 1)))
	if p.Connections > 0 {
		args = append(args, "-nc", strconv.Itoa(p.Connections))
	}
	return args
}
