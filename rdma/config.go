package rdma

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// Config configures a Context. The zero value is usable: one connection, nothing
// open to the peer, queues as large as the pools.
type Config struct {
	// Name appears in errors and logs. Empty: "rdma".
	Name string
	// Engine is the engine that drives the context; New connects the two. Nil: it is
	// connected later, with Engine.Connect.
	Engine *pe.Engine
	// PD is the protection domain. All memory that tasks use has to be registered
	// in it. Nil: the device's default.
	PD verbs.PD
	// Permissions say what peers may do, as far as the memory map that they reach
	// allows it too: mmap.RemoteRead, RemoteWrite and RemoteAtomic; others are
	// ignored. Zero: peers may send messages, and nothing else.
	Permissions mmap.Permission

	// Port of the device, from 1. Zero: 1.
	Port int
	// GIDIndex is the index of the local address in the port's GID table. Nil:
	// the first usable one, RoCEv2 on IPv4 before RoCEv2 on IPv6, link-local
	// addresses last.
	GIDIndex *int
	// MTU is the most bytes in one packet; a connection uses the smaller of its
	// two ends'. Zero: the port's active MTU, which is also the largest allowed.
	MTU verbs.MTU
	// SL is the service level, 0 to 15 (0 to 7 on Ethernet). The software device
	// accepts it, TrafficClass and HopLimit, and does not put them on packets.
	SL uint8
	// TrafficClass is the IP header's: DSCP in the upper six bits.
	TrafficClass uint8
	// HopLimit of the IP header. Zero: 64.
	HopLimit uint8

	// MaxConnections is how many connections can exist at a time. Zero: 1.
	MaxConnections int
	// ConnectTimeout is how long Connect waits for the peer before the connection
	// fails. Zero: for ever.
	ConnectTimeout time.Duration

	// RNRRetry is how often a message is repeated that met no receive at the
	// peer: 0 to 6, and 7 for ever. Nil: for ever.
	RNRRetry *int
	// RetryCount is how often a request is repeated that the peer did not
	// acknowledge: 0 to 7. Nil: 7.
	RetryCount *int
	// AckTimeout is how long to wait for the acknowledgement, rounded up to
	// 4.096 µs × 2^n with n from 1 to 31 (IBTA 9.7.6.1.3). Zero: 67 ms (n = 14).
	// Negative: for ever.
	AckTimeout time.Duration
	// MinRNRTimer is how long a peer is told to wait before it repeats a message
	// that met no receive, rounded up to the next of the 32 values of IBTA
	// 9.7.5.2.8, which go from 10 µs to 655.36 ms. Zero: 640 µs.
	MinRNRTimer time.Duration

	// SendQueueSize is how many tasks can be at the device at a time on one
	// connection; further ones wait their turn in the context. Zero: as many as
	// the pools hold, or the device's limit.
	SendQueueSize int
	// RecvQueueSize is the same for receives, of all connections together.
	RecvQueueSize int
	// MaxSendSGE is how many buffers the local list of a send, read or write may
	// have. Zero: 4, or the device's limit.
	MaxSendSGE int
	// MaxRecvSGE is how many buffers the list of a receive may have. Zero: 4, or
	// the device's limit.
	MaxRecvSGE int

	// Log receives connections made and lost (debug), failures (warn). The zero
	// value is silent.
	Log zerolog.Logger
}
