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
	// None means no retry, no keepalive or no wait, where 0 means the default.
	None = -1
	// Forever means a retry or a wait without end.
	Forever = -2
)

// Config configures a context of connections. The zero value is usable: it allows one reliable
// connection, and peers may read nothing.
type Config struct {
	// Transport is the transport service: verbs.RC, the zero value, or verbs.UC. Over UC nothing is
	// acknowledged: a task succeeds when its packets have left, and a message that is lost, or finds
	// no receive, is gone. There are sends and writes, but no reads and atomics. A connection is
	// Ready when a signal or a message of the peer has arrived. There is no keepalive and no
	// disconnect notice, so programs must tell each other when they end. UC connections are made
	// from descriptors only.
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
	// neither read nor do atomics. A violation fails the peer's task with ErrRemoteAccess or
	// ErrRemoteInvalid, leaves memory untouched, and ends the connection at both ends.
	Permissions mmap.Permission
	// Path is the local address, and what packets carry.
	Path PathConfig

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
	// until the device gives up (see AckTimeout). A device that cannot report writes of peers,
	// such as an adapter, sees a disconnect notice only when a keepalive is due. Zero: two
	// seconds. None: no keepalives.
	Keepalive time.Duration
	// CloseTimeout is how long a connection that this end or the peer has closed waits for its
	// tasks at the device, for the peer's confirmation if it was accepted just before, and for
	// the peer's acknowledgement and answer to the disconnect notice that follows. What is left
	// then is flushed. Zero: one second. None: it does not wait, and writes no notice. Forever is
	// refused.
	CloseTimeout time.Duration

	// SendQueueSize is how many tasks can be at the device at a time on one
	// connection; further ones wait in the context, in order. Zero: 256, or as many
	// as the pools hold that have been made before the connection, or the device takes, if that
	// is less; 16 without a pool. All connections together have as many tasks at the device as
	// the pools hold that were made before Start, or 256 if that is more, and each can have one
	// in any case.
	SendQueueSize int
	// MaxSGE is how many buffers the list of a send, read, write or receive may have; the device
	// may take fewer for some (Capabilities). Zero: 4, or the device's limit. An entry of a send
	// queue has 16 bytes for each of them, and for at least 4. Data of a send or write that fit
	// there are copied into the work request, if the device can take so many inline
	// (Connections.MaxInline), which spares it a read of the memory.
	MaxSGE int

	// RNRRetry is how often the device repeats a message that found no receive at the peer: 1
	// to 6, None or Forever. Zero: Forever. Peers are told to repeat after 640 µs.
	RNRRetry int
	// AckTimeout is how long to wait for the acknowledgement of a request, rounded
	// up to 4.096 µs × 2^n with n from 1 to 31 (IBTA 9.7.6.1.3), before the request is repeated,
	// up to 6 times. Forever: without end. Zero: the software device measures the round trip and
	// adapts (RFC 6298). It repeats soon, and gives up when the peer has been silent for
	// SilenceTimeout. Other devices wait 268 ms (n = 16).
	//
	// A device that does not adapt may wait up to four times as long. The software device doubles
	// the second and the third time-out in a row.
	AckTimeout time.Duration
	// SilenceTimeout is how long a peer may be silent before the software device gives up, where
	// AckTimeout is zero. A process that a debugger has stopped is silent. Zero: 4 s. Adapters
	// ignore it.
	SilenceTimeout time.Duration
}

// PathConfig is the local address that packets use, and the fields of their headers.
type PathConfig struct {
	// Port of the device, from 1. Zero: 1. Connections by address use the port that has the
	// local address.
	Port int
	// GIDIndex is the index of the local address in the port's GID table. Nil:
	// the first usable one, RoCEv2 on IPv4 before RoCEv2 on IPv6, link-local
	// addresses last.
	GIDIndex *int
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
	Path PathConfig

	// QKey is the Q_Key that a message must carry for the endpoint to accept it. Descriptors
	// of endpoints contain it. A reply to a peer that is known only by its messages carries
	// this context's own Q_Key, so such programs must use the same one. Values from 0x80000000
	// on are refused. Zero: DefaultQKey, which is public.
	QKey uint32
	// PKeyIndex is the index, in the port's table, of the P_Key of the endpoint's partition
	// (InfiniBand): 0 to 65535.
	PKeyIndex int
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
	// SendQueueSize and MaxSGE are as in Config.
	SendQueueSize, MaxSGE int
	// RNRRetry is as in Config, for SRD devices that allow setting it (verbs.SRDAttr).
	RNRRetry int
}

// common returns the fields that a Config has too.
func (d *DatagramsConfig) common() Config {
	c := Config{
		Transport: d.Transport, Name: d.Name, Engine: d.Engine, PD: d.PD, Path: d.Path,
		ConnectTimeout: d.ConnectTimeout, CloseTimeout: d.CloseTimeout, SendQueueSize: d.SendQueueSize, MaxSGE: d.MaxSGE, RNRRetry: d.RNRRetry,
	}
	if c.Transport == 0 {
		c.Transport = verbs.UD
	}
	return c
}
