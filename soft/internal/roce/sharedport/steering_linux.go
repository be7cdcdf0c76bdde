package sharedport

import (
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// Offsets in a packet to queue pair 1: BTH, DETH, the 24 bytes of the management datagram's header, message.
const (
	destinationOffset = 4 // of the queue pair number, with the reserved byte before it
	attributeOffset   = wire.BTHLen + wire.DETHLen + 16
	messageOffset     = wire.BTHLen + wire.DETHLen + 24
	requestIDOffset   = messageOffset     // of a SIDR_REP
	receiverOffset    = messageOffset + 4 // the receiver's communication ID
	serviceOffset     = messageOffset + 8 // of a REQ or SIDR_REQ, 8 bytes
)

const (
	load     = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	loadHalf = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
	and      = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	equal    = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	jump     = unix.BPF_JMP | unix.BPF_JA
	result   = unix.BPF_RET | unix.BPF_K
	resultA  = unix.BPF_RET | unix.BPF_A
)

// service is the lower half of a service ID, the upper half of which RDMA CM leaves 0, with the slot of its
// listener.
type service struct {
	id   uint32
	slot int
}

// steering returns the part of the program of link.SteerBound for packets to queue pair 1. A message goes to
// the slot of the service that it requests, or in the lowest bits of its receiver's communication ID.
func steering(rest int, services []service) []unix.SockFilter {
	program := []unix.SockFilter{
		{Code: load, K: destinationOffset},
		{Code: and, K: 1<<24 - 1},
		{Code: equal, Jt: 1, K: wire.ManagementQPN},
		{Code: jump}, // to the end
		{Code: loadHalf, K: attributeOffset},
		{Code: equal, Jt: 8, K: uint32(mad.AttrREQ)},
		{Code: equal, Jt: 7, K: uint32(mad.AttrSIDRREQ)},
		{Code: equal, Jt: 2, K: uint32(mad.AttrSIDRREP)},
		{Code: load, K: receiverOffset},
		{Code: jump, K: 1},
		{Code: load, K: requestIDOffset},
		{Code: equal, Jt: 4}, // it names none
		{Code: and, K: link.Slots - 1},
		{Code: resultA},
		{Code: load, K: serviceOffset},
		{Code: equal, Jt: 1},
		{Code: result, K: uint32(rest)},
		{Code: load, K: serviceOffset + 4},
	}
	for _, s := range services {
		program = append(program, unix.SockFilter{Code: equal, Jf: 1, K: s.id}, unix.SockFilter{Code: result, K: uint32(s.slot)})
	}
	program = append(program, unix.SockFilter{Code: result, K: uint32(rest)})
	program[3].K = uint32(len(program) - 4)
	return program
}
