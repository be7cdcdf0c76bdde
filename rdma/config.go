package rdma

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// Config configures a Context. The zero value is usable: one connection, and
// nothing that peers may read.
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
	// allows it too: mmap.RemoteRead and RemoteAtomic; others are ignored. Whether a
	// peer may write is for the memory map alone to say, since ready signals,
	// keepalives and goodbyes are writes. Zero: peers may neither read nor do
	// atomics.
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
	// EndWithLastConnection has the context stop when no connection is left that
	// could be used: with the reason in Err if the last one failed, without an error
	// if it was closed, by either end. False: the context goes on, for others to
	// come.
	EndWithLastConnection bool
	// ConnectTimeout is how long Connect waits for the peer before the connection
	// fails. Zero: one minute. Negative: for ever.
	ConnectTimeout time.Duration
	// Keepalive is how long a Ready connection may be silent, with no task at the
	// device, before the peer is asked for a sign of life: an empty write, which its
	// program does not notice. If the device finds that the peer does not answer,
	// the connection fails with ErrRetryExceeded. A peer that dies while the
	// connection is idle is noticed after at most twice this time, and the patience
	// of the device. Zero: two seconds. Negative: never.
	Keepalive time.Duration
	// CloseTimeout is how long a connection that is being closed waits for tasks
	// that the device has, and for the peer to take the goodbye, before what is left
	// is flushed. Zero: 100 ms. Negative: it does not wait, and says no goodbye.
	CloseTimeout time.Duration

	// RNRRetry is how often a message is repeated that met no receive at the
	// peer: 0 to 6, and 7 for ever. Nil: for ever.
	RNRRetry *int
	// AckTimeout is how long to wait for the acknowledgement of a request, rounded
	// up to 4.096 µs × 2^n with n from 1 to 31 (IBTA 9.7.6.1.3). Negative: for ever.
	// Zero: a device that can measures the round trip and adapts (the software
	// device; RFC 6298), so that it repeats soon, and gives up only when the peer has
	// not been heard of for seconds; others wait 268 ms (n = 16).
	AckTimeout time.Duration
	// RetryCount is how often a request is repeated that the peer did not
	// acknowledge: 0 to 7. Nil: the device adapts, if AckTimeout is zero too;
	// others repeat 6 times. (The kernel's rxe, in Linux 6.1, takes 7 for ever.)
	RetryCount *int
	// MinRNRTimer is how long a peer is told to wait before it repeats a message
	// that met no receive, rounded up to the next of the 32 values of IBTA
	// 9.7.5.2.8, which go from 10 µs to 655.36 ms. Zero: 640 µs.
	MinRNRTimer time.Duration

	// SendQueueSize is how many tasks can be at the device at a time on one
	// connection; further ones wait in the context, in order. Zero: 128, or as many
	// as the pools hold or the device takes, if that is less.
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
