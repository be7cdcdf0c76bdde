package rdma

import (
	"time"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// In a configuration, zero means the default. These constants are the other special values of
// its numbers and times; all other negative values are refused (ErrRange). An index whose zero
// is a valid entry is a pointer, and nil means the default.
const (
	// None means no retry, no inline data, no keepalive or no wait, where 0 means the default.
	None = -1
	// Forever means a retry or a wait without end.
	Forever = -2
)

// Config configures a context of connections. The zero value is usable: it allows one reliable
// connection, and peers may read nothing.
type Config struct {
	// Transport is the transport service: verbs.RC, the zero value, or verbs.UC. UC has no
	// reads and no atomics, and repeats nothing: a task whose packets are lost has still
	// succeeded.
	Transport verbs.QPType
	// Name appears in errors and logs. Empty: "rdma".
	Name string
	// Engine is the engine that drives the context; New connects the two. Nil: it is
	// connected later, with Engine.Connect.
	Engine *pe.Engine
	// PD is the protection domain. All memory that tasks use has to be registered
	// in it. Nil: the device's default.
	PD verbs.PD
	// Permissions are what peers may do, where the memory map allows it too: mmap.RemoteRead
	// and RemoteAtomic; others are ignored. The memory map alone decides whether a peer may
	// write, since ready signals, keepalives and disconnect notices are writes. Zero: peers may
	// neither read nor do atomics.
	Permissions mmap.Permission
	// Path is the local address, and what packets carry.
	Path Path
	// Queues are the sizes of the queues at the device.
	Queues Queues
	// Retries say when the device repeats a request, and when it gives up.
	Retries Retries

	// MaxConnections is how many connections can exist at a time. Zero: 1.
	MaxConnections int
	// EndWithLastConnection makes the context stop when no connection is Exported, Connecting
	// or Ready any more. If the last one failed, the context stops at once, with the reason in
	// Err. If either end closed it, the context stops after OnConnection has reported it,
	// unless the program has exported another by then. Err is then nil, or matches
	// ErrPeerClosed if the peer closed it while requests of this program were under way:
	// sends, writes, reads, atomics, operations on sync events. Waiting receives do not count,
	// since every program that takes messages has some. A program that waits for an answer
	// must call Fail with the error of OnConnection, or its context ends without an error.
	// False: the context goes on without connections.
	EndWithLastConnection bool
	// ConnectTimeout is how long Connect waits for the peer before the connection
	// fails. Zero: one minute. Forever is possible.
	ConnectTimeout time.Duration
	// Keepalive is how long a Ready connection may go without a message from the peer or a
	// completed task. Then the context posts an empty write, which the peer's device
	// acknowledges and its program does not notice. It posts none while the device has tasks
	// of the connection. Without the acknowledgement, the connection fails with
	// ErrRetryExceeded: at most 1.5 × Keepalive after the death of the peer, plus the time
	// until the device gives up (see Retries.AckTimeout). A device that cannot report writes of peers,
	// such as an adapter, sees a disconnect notice only when a keepalive is due. Zero: two
	// seconds. None: no keepalives.
	Keepalive time.Duration
	// CloseTimeout is how long a connection that this end or the peer has closed waits for its
	// tasks at the device, for the peer's confirmation if it was accepted just before, and for
	// the peer's acknowledgement and answer to the disconnect notice that follows. What is left
	// then is flushed. Zero: one second. None: it does not wait, and writes no notice. Forever is
	// refused.
	CloseTimeout time.Duration
	// DrainTimeout is how long the device may take to give back the requests of a connection
	// that has ended. Then the queue pair is destroyed, and the tasks are flushed. Working
	// devices take milliseconds. Zero: DefaultDrainTimeout. None and Forever are refused.
	DrainTimeout time.Duration
}

// Path is the local address that packets use, and the fields of their headers.
type Path struct {
	// Port of the device, from 1. Zero: 1. Connections by address use the port that has the
	// local address.
	Port int
	// GIDIndex is the index of the local address in the port's GID table. Nil:
	// the first usable one, RoCEv2 on IPv4 before RoCEv2 on IPv6, link-local
	// addresses last.
	GIDIndex *int
	// PKeyIndex is the index of the partition's P_Key in the port's table (InfiniBand). For
	// connections by address the connection manager chooses it.
	PKeyIndex int
	// MTU is the most bytes in one packet; a connection uses the smaller of its two ends'.
	// Zero: the port's active MTU, which is also the largest allowed. Bridge does not use it.
	// By address, the dialling end asks for a path MTU. A listener with a smaller one rejects
	// the request and names its own, and Dial asks again for that. The connection manager of
	// adapters always asks for the path MTU of the network interface: if that is larger than
	// MTU, Dial and Accept fail with ErrRange.
	MTU verbs.MTU
	// SL is the service level: 0 to 15, or 0 to 7 on Ethernet, where adapters send it as the
	// priority of the VLAN tag. Packets without a VLAN tag, such as those of the software
	// device, do not carry it.
	SL uint8
	// TrafficClass is that of the IP header: DSCP in the upper six bits, ECN in the lower two.
	TrafficClass uint8
	// HopLimit is that of the IP header. Zero: 64. On adapters, packets of connections have
	// the hop limit of the kernel's route.
	HopLimit uint8
	// FlowLabel is that of the IPv6 header, 20 bits; IPv4 has none.
	FlowLabel uint32
}

// Queues are the sizes of the queues at the device.
type Queues struct {
	// SendQueueSize is how many tasks can be at the device at a time on one
	// connection; further ones wait in the context, in order. Zero: 256, or as many
	// as the pools hold that have been made before the connection, or the device takes, if that
	// is less; 16 without a pool. All connections together have as many tasks at the device as
	// the pools hold that were made before Start, or 256 if that is more, and each can have one
	// in any case.
	SendQueueSize int
	// RecvQueueSize is how many receives can be at the device at a time, for all connections
	// together, unless each has its own (Connections.ReceivePerConnection); further ones wait in
	// the context, in order. With UC, and on a device without shared receive queues
	// (verbs.DeviceAttr.MaxSRQ is 0), each connection gets at most RecvQueueSize /
	// MaxConnections of them, in turn; Start fails there with ErrRange if there are receives,
	// but fewer than MaxConnections. Zero: as many as the pools and Receive have or the device
	// takes, whichever is less.
	RecvQueueSize int
	// MaxSendSGE is how many buffers the local list of a send, read or write may
	// have. Zero: 4, or the device's limit.
	MaxSendSGE int
	// MaxRecvSGE is how many buffers the list of a receive may have. Zero: 4, or
	// the device's limit.
	MaxRecvSGE int
	// MaxReadAtomic is how many reads and atomics each end of a connection can have under way
	// at a time; this end has no more than the peer accepts. Further ones wait at the device.
	// Zero: 16, or the device's limit. Bridge and contexts of datagrams do not use it.
	MaxReadAtomic int
	// MaxInline is up to how many bytes the data of a send or write are copied into the work
	// request, which spares the device a read of the memory. Zero: 64, or the device's limit.
	// None: nothing is copied.
	MaxInline int
}

// Retries say when the device of one end repeats a request of a connection, and when it gives up.
type Retries struct {
	// RNRRetry is how often the device repeats a message that found no receive at the peer: 1
	// to 6, None or Forever. Zero: Forever.
	RNRRetry int
	// AckTimeout is how long to wait for the acknowledgement of a request, rounded
	// up to 4.096 µs × 2^n with n from 1 to 31 (IBTA 9.7.6.1.3). Forever: without end.
	// Zero, with RetryCount zero: the software device measures the round trip and adapts
	// (RFC 6298). It repeats soon, and gives up when the peer has been silent for
	// SilenceTimeout.
	// Zero otherwise, and on other devices: 268 ms (n = 16).
	//
	// A device that does not adapt may wait up to four times as long. The software device doubles
	// the second and the third time-out in a row.
	AckTimeout time.Duration
	// RetryCount is how often the device repeats a request that the peer did not acknowledge:
	// 1 to 7, or None. Zero: see Retries.AckTimeout; devices that do not adapt repeat 6 times. (The
	// kernel's rxe, in Linux 6.1, repeats without end for 7.)
	RetryCount int
	// SilenceTimeout is how long a peer may be silent before the software device gives up, where
	// AckTimeout and RetryCount are zero. A process that a debugger has stopped is silent. Zero:
	// 4 s. Adapters ignore it.
	SilenceTimeout time.Duration
	// MinRNRTimer is how long peers are told to wait before they repeat a message that found
	// no receive, rounded up to the next of the 32 values of IBTA 9.7.5.2.8, which go from 10
	// µs to 655.36 ms. Zero: 640 µs. A software device waits longer, up to 1 s, while many of
	// its queue pairs wait for receives without a limit.
	MinRNRTimer time.Duration
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
	// Path is as in Config.
	Path Path
	// Queues are as in Config.
	Queues Queues

	// QKey is the Q_Key that a message must carry for the endpoint to accept it. Descriptors
	// of endpoints contain it. A reply to a peer that is known only by its messages carries
	// this context's own Q_Key, so such programs must use the same one. Values from 0x80000000
	// on are refused. Zero: DefaultQKey, which is public.
	QKey uint32
	// UnsolicitedWriteRecv lets writes with immediate arrive at an SRD endpoint without a
	// receive. They go to the function of Receive. Both ends must set it, and both devices
	// must support it (verbs.SRDAttr). Each takes an entry of the completion queue, which has
	// room for as many as there are receives: on EFA, more at a time overrun it.
	UnsolicitedWriteRecv bool
	// ConnectTimeout is how long ResolvePeer waits for an answer. Zero: one minute. Forever is
	// possible.
	ConnectTimeout time.Duration
	// CloseTimeout is how long a stopping context waits for the tasks at the device before
	// they are flushed. Zero: one second. None: it does not wait.
	CloseTimeout time.Duration
	// DrainTimeout is as in Config.
	DrainTimeout time.Duration
	// RNRRetry is as in Retries, for SRD devices that allow setting it (verbs.SRDAttr).
	RNRRetry int
}

// common returns the fields that a Config has too.
func (d *DatagramsConfig) common() Config {
	c := Config{
		Transport: d.Transport, Name: d.Name, Engine: d.Engine, PD: d.PD, Path: d.Path, Queues: d.Queues,
		ConnectTimeout: d.ConnectTimeout, CloseTimeout: d.CloseTimeout, DrainTimeout: d.DrainTimeout, Retries: Retries{RNRRetry: d.RNRRetry},
	}
	if c.Transport == 0 {
		c.Transport = verbs.UD
	}
	return c
}
