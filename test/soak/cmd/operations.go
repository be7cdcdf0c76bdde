package main

import (
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/rdma"
)

// operations are the operations that connections and SRD peers have in common.
type operations interface {
	send(src *bufinv.Buf) (*rdma.Task, error)
	sendImm(src *bufinv.Buf, imm uint32) (*rdma.Task, error)
	read(src, dst *bufinv.Buf) (*rdma.Task, error)
	write(src, dst *bufinv.Buf) (*rdma.Task, error)
	writeImm(src, dst *bufinv.Buf, imm uint32) (*rdma.Task, error)
}

// pool is a pool of tasks for connections or for peers.
type pool[T any] interface {
	Send(to T, src *bufinv.Buf) (*rdma.Task, error)
	SendImm(to T, src *bufinv.Buf, imm uint32) (*rdma.Task, error)
	Read(to T, src, dst *bufinv.Buf) (*rdma.Task, error)
	Write(to T, src, dst *bufinv.Buf) (*rdma.Task, error)
	WriteImm(to T, src, dst *bufinv.Buf, imm uint32) (*rdma.Task, error)
}

// target is a connection or a peer, with the pool of tasks for it.
type target[T any] struct {
	tasks pool[T]
	to    T
}

func (t target[T]) send(src *bufinv.Buf) (*rdma.Task, error) { return t.tasks.Send(t.to, src) }
func (t target[T]) sendImm(src *bufinv.Buf, imm uint32) (*rdma.Task, error) {
	return t.tasks.SendImm(t.to, src, imm)
}
func (t target[T]) read(src, dst *bufinv.Buf) (*rdma.Task, error) {
	return t.tasks.Read(t.to, src, dst)
}
func (t target[T]) write(src, dst *bufinv.Buf) (*rdma.Task, error) {
	return t.tasks.Write(t.to, src, dst)
}
func (t target[T]) writeImm(src, dst *bufinv.Buf, imm uint32) (*rdma.Task, error) {
	return t.tasks.WriteImm(t.to, src, dst, imm)
}
