package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// Completer takes completions of one queue pair's send or receive side.
type Completer interface {
	// Complete queues a completion. Polling it frees the queue entries in frees. A solicited
	// completion also wakes a consumer that waits for solicited ones only.
	Complete(wc verbs.WC, frees QueueEntries, solicited bool)
}

// Output sends packets to a peer. The queue pair does not know by which path.
type Output interface {
	// Send takes a packet whose payload is the n bytes of pieces. p and pieces are valid until
	// the Transmit that calls Send returns. The bytes are registered memory of the program,
	// which may change at any time. An Output that reads them later must stop at
	// Config.Revoked. Send reports false if the bytes cannot be read (see dma.Fault); then it
	// sends nothing. A packet that cannot be sent for another reason is lost.
	Send(p *wire.Packet, pieces [][]byte, n int) bool
}

// Config configures a queue pair.
type Config struct {
	Type       verbs.QPType
	Num        uint32
	Domain     uint32
	Memory     *Memory
	Send, Recv Completer
	RecvQueue  *RecvQueue // nil on XRC
	SendDepth  int
	MaxSendSGE int
	MaxInline  int
	SignalAll  bool
	// XRC has the queues that requests to an XRC receive queue pair can name, by number.
	XRC map[uint32]*XRCQueue
	// Adaptive makes a reliable connection measure the round trip and repeat requests
	// accordingly, instead of by QPAttr.Timeout and RetryCount.
	Adaptive bool
	// SilenceTimeout is how long the peer may be silent before the oldest request fails. Zero:
	// defaultSilenceTimeout.
	SilenceTimeout time.Duration
	// Window is how many bytes may be under way at a time, until SetWindow.
	Window int
	// PortMTU bounds datagrams. The MTU of the path bounds the packets of connections.
	PortMTU verbs.MTU
	// CheckAH returns what is wrong with the address handle of a datagram. A handle that it
	// accepts must be the Output to its peer.
	CheckAH func(ah verbs.AH, remoteQPN uint32) error
	// Bind returns the window of a bind and its region, or what is wrong with either. Nil: the
	// device has no windows.
	Bind func(*verbs.MWBind) (*Window, *Region, error)
	// Counters and RNRWaiters are shared by all queue pairs under one lock. If RNRWaiters is
	// nil, the queue pair has its own.
	Counters   *Counters
	RNRWaiters *RNRWaiters
	// Guard bounds how many keys the peer's host can try. Nil: there is no bound.
	Guard KeyGuard
	// Event takes asynchronous events of the queue pair.
	Event func(verbs.EventType)
	// Revoked is called before anybody can learn that memory belongs to the program again. mem
	// is the memory of a window that was taken away. If mem is nil, the queue pair has failed
	// or was reset, and all memory that it has sent from is meant. Once Revoked has returned,
	// an Output must not read payload there that it has not copied. Nil: no Output reads
	// payload after Send.
	Revoked func(mem []byte)
}

// identity holds what never changes.
type identity struct {
	kind           verbs.QPType
	num            uint32
	portMTU        verbs.MTU
	service        wire.Service
	reliable       bool
	signalAll      bool
	mayAdapt       bool // Config.Adaptive
	silenceTimeout time.Duration
	asAdapter      bool // ActAsAdapter was called
}

// shared is what a queue pair shares with the others of its device, or of its lock.
type shared struct {
	memory     *Memory
	counters   *Counters
	rnrWaiters *RNRWaiters
}

// hooks are the device's functions: see Config.
type hooks struct {
	checkAH  func(verbs.AH, uint32) error
	findBind func(*verbs.MWBind) (*Window, *Region, error)
	guard    KeyGuard
	event    func(verbs.EventType)
	revoked  func(mem []byte)
}

// New returns a queue pair in the state Reset.
func New(c Config) *QP {
	q := &QP{
		identity: identity{
			kind: c.Type, num: c.Num, portMTU: c.PortMTU, service: services[c.Type],
			reliable: Reliable(c.Type), signalAll: c.SignalAll, mayAdapt: c.Adaptive && Reliable(c.Type),
			silenceTimeout: c.SilenceTimeout,
		},
		bounds: bounds{window: c.Window},
		shared: shared{memory: c.Memory, counters: c.Counters, rnrWaiters: c.RNRWaiters},
		queues: queues{rq: c.RecvQueue, xrc: c.XRC, domain: c.Domain, sq: newSendQueue(c.SendDepth, c.MaxSendSGE, c.MaxInline), sendCQ: c.Send, recvCQ: c.Recv},
		hooks:  hooks{checkAH: c.CheckAH, findBind: c.Bind, guard: c.Guard, event: c.Event, revoked: c.Revoked},
	}
	if q.silenceTimeout <= 0 {
		q.silenceTimeout = defaultSilenceTimeout
	}
	if q.rq == nil {
		q.rq = noReceives()
	}
	receives := NewUnpolled(&q.rq.taken)
	q.sends, q.receives = NewUnpolled(&q.sq.taken), &receives
	if q.revoked == nil {
		q.revoked = func([]byte) {}
	}
	if q.rnrWaiters == nil {
		q.rnrWaiters = &RNRWaiters{}
	}
	return q
}

var services = [...]wire.Service{
	verbs.RC: wire.ServiceRC, verbs.UC: wire.ServiceUC, verbs.UD: wire.ServiceUD, verbs.XRCSend: wire.ServiceXRC, verbs.XRCRecv: wire.ServiceXRC,
}

// Pairs reports whether queue pairs of these types can be connected to each other.
func Pairs(a, b verbs.QPType) bool {
	return services[a] == services[b] && (a == b) != (services[a] == wire.ServiceXRC)
}

// Reliable reports whether a queue pair is an end of a reliable connection.
func Reliable(t verbs.QPType) bool { return t == verbs.RC || t == verbs.XRCSend || t == verbs.XRCRecv }
