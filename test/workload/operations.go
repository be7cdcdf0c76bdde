package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rdma"
)

// operation is a row of the table: what both ends do, and what they need.
type operation struct {
	name      string
	shape     shape
	shares    shares
	permits   mmap.Permission // of the responder's context
	mutual    bool            // the requester exports and permits the same
	requester work
	responder work
}

// work is the work of one end. It makes memory and pools while the context is Idle, connects
// (end.connect), and ends with end.finish. Its error ends the context.
type work func(ctx context.Context, e *end) error

// shape is the kind of data that an operation moves.
type shape int

const (
	data     shape = iota // any number of bytes, in as many tasks as the device requires
	messages              // data whose tasks consume a receive of the peer each
	value                 // 8 bytes
)

// shares is what the responder exports to the requester.
type shares int

const (
	nothing shares = iota
	memory
	event
)

// operations is the table of all operations.
var operations = []operation{
	{
		name: "read", shape: data, shares: memory, permits: mmap.RemoteRead,
		requester: reads,
		responder: provides,
	},
	{
		name: "write", shape: data, shares: memory,
		requester: moves(func(p *rdma.Pool, m move) (*rdma.Task, error) {
			return p.Write(m.conn, m.local, m.remote)
		}),
		responder: takes,
	},
	{
		name: "write_immediate", shape: messages, shares: memory,
		requester: moves(func(p *rdma.Pool, m move) (*rdma.Task, error) {
			return p.WriteImm(m.conn, m.local, m.remote, m.imm)
		}),
		responder: receives(rdma.ReceivedWriteImm),
	},
	{
		name: "send", shape: messages,
		requester: moves(func(p *rdma.Pool, m move) (*rdma.Task, error) {
			return p.Send(m.conn, m.local)
		}),
		responder: receives(rdma.ReceivedSend),
	},
	{
		name: "send_immediate", shape: messages,
		requester: moves(func(p *rdma.Pool, m move) (*rdma.Task, error) {
			return p.SendImm(m.conn, m.local, m.imm)
		}),
		responder: receives(rdma.ReceivedSendImm),
	},
	{
		name: "compare_and_swap", shape: value, shares: memory, permits: mmap.RemoteAtomic,
		// The first swap succeeds. The second finds another value than expected.
		requester: changes(2, func(v uint64) uint64 {
			if v == firstValue {
				return swapped
			}
			return v
		}, func(p *rdma.Pool, conn *rdma.Connection, dst *bufinv.Buf) (*rdma.Task, error) {
			return p.CompareSwap(conn, dst, firstValue, swapped)
		}),
		responder: holds,
	},
	{
		name: "fetch_and_add", shape: value, shares: memory, permits: mmap.RemoteAtomic,
		requester: changes(8, func(v uint64) uint64 { return v + addend },
			func(p *rdma.Pool, conn *rdma.Connection, dst *bufinv.Buf) (*rdma.Task, error) {
				return p.FetchAdd(conn, dst, addend)
			}),
		responder: holds,
	},
	{
		name: "sync_event", shape: value, shares: event, permits: mmap.RemoteRead | mmap.RemoteAtomic,
		requester: signals,
		responder: waits,
	},
	{
		name: "count", shape: value, shares: event, permits: mmap.RemoteRead | mmap.RemoteAtomic, mutual: true,
		requester: counts,
		responder: counts,
	},
}

func operationNames() (names []string) {
	for _, o := range operations {
		names = append(names, o.name)
	}
	return names
}

func operationByName(name string) (*operation, error) {
	for i := range operations {
		if operations[i].name == name {
			return &operations[i], nil
		}
	}
	return nil, fmt.Errorf("want one of %s", strings.Join(operationNames(), ", "))
}
