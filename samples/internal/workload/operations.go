package main

import (
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rdma"
)

// operation is a row of the table: what both ends do, and what it takes.
type operation struct {
	name      string
	shape     shape
	shares    shares
	permits   mmap.Permission // of the responder's context
	requester func(*end) role
	responder func(*end) role
}

// shape is what an operation moves.
type shape int

const (
	data     shape = iota // any number of bytes, in as many tasks as the device demands
	messages              // data of which each task takes a receive of the peer
	value                 // 8 bytes
)

// shares is what the responder exports.
type shares int

const (
	nothing shares = iota
	memory
	event
)

// operations is the table of all that there are.
var operations = []operation{
	{
		name: "read", shape: data, shares: memory, permits: mmap.RemoteRead,
		requester: reads,
		responder: provides,
	},
	{
		name: "write", shape: data, shares: memory,
		requester: moves((*rdma.Context).WritePool, func(p *rdma.WritePool, m move) (*rdma.WriteTask, error) {
			return p.Alloc(m.conn, m.local, m.remote)
		}),
		responder: takes,
	},
	{
		name: "write_immediate", shape: messages, shares: memory,
		requester: moves((*rdma.Context).WriteImmPool, func(p *rdma.WriteImmPool, m move) (*rdma.WriteImmTask, error) {
			return p.Alloc(m.conn, m.local, m.remote, m.imm)
		}),
		responder: receives(rdma.ReceivedWriteImm),
	},
	{
		name: "send", shape: messages,
		requester: moves((*rdma.Context).SendPool, func(p *rdma.SendPool, m move) (*rdma.SendTask, error) {
			return p.Alloc(m.conn, m.local)
		}),
		responder: receives(rdma.ReceivedSend),
	},
	{
		name: "send_immediate", shape: messages,
		requester: moves((*rdma.Context).SendImmPool, func(p *rdma.SendImmPool, m move) (*rdma.SendImmTask, error) {
			return p.Alloc(m.conn, m.local, m.imm)
		}),
		responder: receives(rdma.ReceivedSendImm),
	},
	{
		name: "compare_and_swap", shape: value, shares: memory, permits: mmap.RemoteAtomic,
		// The first swaps, the second finds another value than it expects.
		requester: changes((*rdma.Context).CompareSwapPool, 2, func(v uint64) uint64 {
			if v == firstValue {
				return swapped
			}
			return v
		}, func(p *rdma.CompareSwapPool, conn *rdma.Connection, dst, result *bufinv.Buf) (*rdma.CompareSwapTask, error) {
			return p.Alloc(conn, dst, result, firstValue, swapped)
		}),
		responder: holds,
	},
	{
		name: "fetch_and_add", shape: value, shares: memory, permits: mmap.RemoteAtomic,
		requester: changes((*rdma.Context).FetchAddPool, 8, func(v uint64) uint64 { return v + addend },
			func(p *rdma.FetchAddPool, conn *rdma.Connection, dst, result *bufinv.Buf) (*rdma.FetchAddTask, error) {
				return p.Alloc(conn, dst, result, addend)
			}),
		responder: holds,
	},
	{
		name: "sync_event", shape: value, shares: event, permits: mmap.RemoteRead,
		requester: signals,
		responder: waits,
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
