package rdma

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// In a configuration, zero is the default, and these stand for the two ends of a range. Other
// negative values are refused (ErrRange). An index of which zero is an entry like others is a
// pointer, and nil is the default.
const (
	// None is no retry, no inline data, no keepalive or no wait: 0, where 0 is the default.
	None = -1
	// Forever is a retry or a wait without end.
	Forever = -2
)

// Config configures a context of connections. The zero value is usable: one reliable
// connection, and nothing that peers may read.
type Config struct {
	// Transport is the transport service: verbs.RC, the zero value, or verbs.UC. Over UC there
	// are no reads and no atomics, and nothing is repeated: what is lost is lost, and the task
	// that sent it has succeeded.
	Transport verbs.QPType
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
	Path
	Queues

	// MaxConnections is how many connections can exist at a time. Zero: 1.
	MaxConnections int
	// EndWithLastConnection has the context stop when no connection is left that is
	// Exported, Connecting or Ready. If the last one failed: at once, with the reason in
	// Err. If it was closed, by either end: after OnConnection has reported it, unless the
	// program has exported another by then, and without an error, except where the peer
	// closed it while requests of this program were under way: sends, writes, reads,
	// atomics, operations on sync events. Then Err matches ErrPeerClosed. Receives that
	// were waiting do not count, since every program that takes messages has some: one
	// that waits for an answer passes the error that OnConnection gets to Fail. False: the
	// context goes on without connections.
	EndWithLastConnection bool
	// ConnectTimeout is how long Connect waits for the peer before the connection
	// fails. Zero: one minute. Forever is possible.
	ConnectTimeout time.Duration
	// Keepalive is how long a Ready connection may go without a message from the
	// peer or a completed task before the device is given an empty write, which the
	// peer's device acknowledges and its program does not notice. None is made while
	// the device has tasks of the connection. Where the acknowledgement does not come,
	// the connection fails with ErrRetryExceeded: after the death of the peer that
	// takes at most one and a half times as long, and the time in which the device gives
	// up (see AckTimeout). A device that cannot report writes of peers, as adapters cannot,
	// notices a goodbye only then. Zero: two seconds. None: no keepalives.
	Keepalive time.Duration
	// CloseTimeout is how long a connection that is being closed waits for the tasks that the
	// device has, and for the goodbye behind them to be acknowledged, before what is left is
	// flushed. Zero: one second. None: it does not wait, and writes no goodbye. Forever is
	// refused.
	CloseTimeout time.Duration
	// DrainTimeout is how long a device that has been told to give back what it has of a
	// connection may take, before its queue pair is destroyed and the tasks are flushed. Devices
	// that work take milliseconds. Zero: DefaultDrainTimeout. None and Forever are refused.
	DrainTimeout time.Duration

	// RNRRetry is how often a message is repeated that met no receive at the peer: 1 to 6, None
	// or Forever. Zero: Forever.
	RNRRetry int
	// AckTimeout is how long to wait for the acknowledgement of a request, rounded
	// up to 4.096 µs × 2^n with n from 1 to 31 (IBTA 9.7.6.1.3). Forever: without end.
	// Zero, with RetryCount zero: the software device measures the round trip and adapts
	// (RFC 6298). It repeats soon, and gives up when the peer has been silent for 4 s.
	// Zero otherwise, and on other devices: 268 ms (n = 16).
	AckTimeout time.Duration
	// RetryCount is how often a request is repeated that the peer did not acknowledge: 1 to 7, or
	// None. Zero: see AckTimeout; devices that do not adapt repeat 6 times. (The kernel's rxe, in
	// Linux 6.1, takes 7 to mean for ever.)
	RetryCount int
	// MinRNRTimer is how long a peer is asked to wait before it repeats a message
	// that met no receive, rounded up to the next of the 32 values of IBTA
	// 9.7.5.2.8, which go from 10 µs to 655.36 ms. Zero: 640 µs. A software device of
	// which many queue pairs wait for receives without a limit waits longer, up to 1 s.
	MinRNRTimer time.Duration

	// Log receives connections made and lost (debug), failures (warn). The zero
	// value is silent.
	Log zerolog.Logger
}

// Path says by which address of the device packets go, and what their headers have.
type Path struct {
	// Port of the device, from 1. Zero: 1. Connections by address use the port that has the
	// local address.
	Port int
	// GIDIndex is the index of the local address in the port's GID table. Nil:
	// the first usable one, RoCEv2 on IPv4 before RoCEv2 on IPv6, link-local
	// addresses last.
	GIDIndex *int
	// PKeyIndex is where the partition's P_Key is in the port's table (InfiniBand). For
	// connections by address the connection manager says it.
	PKeyIndex int
	// MTU is the most bytes in one packet; a connection uses the smaller of its
	// two ends'. Zero: the port's active MTU, which is also the largest allowed. Bridge does
	// not use it. By address, the peer that dials asks for a path MTU, and one that is more
	// than the listener's is rejected with it; Dial then asks for that. The connection
	// manager of adapters always asks for the path MTU of the network interface: where that
	// is more than MTU, Dial and Accept fail with ErrRange.
	MTU verbs.MTU
	// SL is the service level, 0 to 15 (0 to 7 on Ethernet, where adapters make it the
	// priority of a VLAN tag, and packets without one do not have it: those of the software
	// device have none).
	SL uint8
	// TrafficClass is the one in the IP header: DSCP in the upper six bits, ECN in the
	// others.
	TrafficClass uint8
	// HopLimit of the IP header. Zero: 64. Packets of connections on adapters have that of
	// the kernel's route.
	HopLimit uint8
	// FlowLabel of the IPv6 header, 20 bits; IPv4 has none.
	FlowLabel uint32
}

// Queues has the sizes of the queues at the device.
type Queues struct {
	// SendQueueSize is how many tasks can be at the device at a time on one
	// connection; further ones wait in the context, in order. Zero: 256, or as many
	// as the pools hold or the device takes, if that is less; 16 without any pool but the
	// shared one.
	SendQueueSize int
	// RecvQueueSize is how many receives can be at the device at a time, for all
	// connections together; further ones wait in the context, in order. With UC, and on
	// a device without shared receive queues (verbs.DeviceAttr.MaxSRQ is 0), each connection is given
	// RecvQueueSize / MaxConnections of them at most, in turn: where there are receives, but
	// fewer than MaxConnections, Start fails there with ErrRange. Zero: as many as the pools
	// and Receive have or the device takes, whichever is less.
	RecvQueueSize int
	// MaxSendSGE is how many buffers the local list of a send, read or write may
	// have. Zero: 4, or the device's limit.
	MaxSendSGE int
	// MaxRecvSGE is how many buffers the list of a receive may have. Zero: 4, or
	// the device's limit.
	MaxRecvSGE int
	// MaxReadAtomic is how many reads and atomics can be under way at a time on a connection, of
	// each end: the program's, where the peer answers as many, and the peer's. Further ones
	// wait at the device. Zero: 16, or the device's limit. Bridge does not use it, and
	// endpoints have none.
	MaxReadAtomic int
	// MaxInline is how many bytes the data of a send or write may have to be copied into the
	// work request, which spares the device a read of the memory. Zero: 64, or the device's
	// limit. None: none.
	MaxInline int
}

// DatagramsConfig configures a context of datagrams. The zero value is usable: an endpoint of
// UD.
type DatagramsConfig struct {
	// Transport is the transport service: verbs.UD or verbs.SRD. Zero: verbs.UD.
	Transport verbs.QPType
	// Name appears in errors and logs. Empty: "rdma".
	Name string
	// Engine is the engine that drives the context; New connects the two. Nil: it is
	// connected later, with Engine.Connect.
	Engine *pe.Engine
	// PD is the protection domain. All memory that tasks use has to be registered
	// in it. Nil: the device's default.
	PD verbs.PD
	Path
	Queues

	// QKey is what messages must carry to be taken by the endpoint. Descriptors of endpoints have
	// it. An answer to a peer that is known only by its messages carries this context's own Q_Key,
	// so such programs agree on one. From 0x80000000 on it is refused. Zero: DefaultQKey, which
	// everybody knows.
	QKey uint32
	// UnsolicitedWriteRecv has writes with immediate that come to an SRD endpoint take no
	// receive. They go to the function of Receive. Both ends have to set it, and the devices
	// of both to have it (verbs.SRDAttr). They take room in the completion queue, which has
	// that for as many as there are receives: on EFA, more than those at a time overrun it.
	UnsolicitedWriteRecv bool
	// ConnectTimeout is how long ResolvePeer waits for an answer. Zero: one minute. Forever is
	// possible.
	ConnectTimeout time.Duration
	// CloseTimeout is how long an endpoint whose context stops waits for the tasks that the device
	// has, before they are flushed. Zero: one second. None: it does not wait.
	CloseTimeout time.Duration
	// DrainTimeout is that of Config.
	DrainTimeout time.Duration
	// RNRRetry is that of Config, for SRD devices that let it be set (verbs.SRDAttr).
	RNRRetry int

	// Log receives warnings. The zero value is silent.
	Log zerolog.Logger
}

// common is what a Config has, too.
func (d *DatagramsConfig) common() Config {
	c := Config{
		Transport: d.Transport, Name: d.Name, Engine: d.Engine, PD: d.PD, Path: d.Path, Queues: d.Queues,
		ConnectTimeout: d.ConnectTimeout, CloseTimeout: d.CloseTimeout, DrainTimeout: d.DrainTimeout, RNRRetry: d.RNRRetry, Log: d.Log,
	}
	if c.Transport == 0 {
		c.Transport = verbs.UD
	}
	return c
}
