package control

import (
	"fmt"
	"math"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/machine"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
)

// Kind is the kind of a message.
type Kind uint16

// The kinds, in the order in which they are first sent.
const (
	kindRequest Kind = iota + 1
	kindAccept
	kindEnd
	kindConnected
	kindBegin
	kindReady
	kindStop
	kindOutcome
	kindBye
	kindFault
)

var kinds = [...]struct {
	name string
	make func() Message
}{
	kindRequest:   {"request", func() Message { return &Request{} }},
	kindAccept:    {"accept", func() Message { return &Accept{} }},
	kindEnd:       {"end", func() Message { return &End{} }},
	kindConnected: {"connected", func() Message { return &Connected{} }},
	kindBegin:     {"begin", func() Message { return &Begin{} }},
	kindReady:     {"ready", func() Message { return &Ready{} }},
	kindStop:      {"stop", func() Message { return &Stop{} }},
	kindOutcome:   {"outcome", func() Message { return &Outcome{} }},
	kindBye:       {"bye", func() Message { return &Bye{} }},
	kindFault:     {"fault", func() Message { return &Fault{} }},
}

// String names the kind.
func (k Kind) String() string {
	if int(k) < len(kinds) && kinds[k].name != "" {
		return kinds[k].name
	}
	return fmt.Sprintf("message of kind %d", uint16(k))
}

// message is an empty message of the kind; nil: there is no such kind.
func (k Kind) message() Message {
	if int(k) >= len(kinds) || kinds[k].make == nil {
		return nil
	}
	return kinds[k].make()
}

// Message is one of the messages below.
type Message interface{ kind() Kind }

// Request is the first message of a client, and of each further test.
type Request struct {
	Plan plan.Plan `json:"plan"`
	// Token is repeated by the client when it dials the server's engines, where connections
	// are made by connection manager.
	Token []byte `json:"token,omitempty"`
}

// TokenLen is the length of a Token.
const TokenLen = 16

// Host is what an end says about itself.
type Host struct {
	Machine  machine.Machine `json:"machine"`
	Device   string          `json:"device"`
	Driver   string          `json:"driver"`
	Firmware string          `json:"firmware,omitempty"`
	GID      string          `json:"gid"`
	GIDIndex int             `json:"gid_index"`
	GIDType  string          `json:"gid_type"`
	Link     string          `json:"link"`
	Rate     uint64          `json:"rate_bits_per_second,omitempty"`
}

// Accept is the server's answer to a Request that it will serve.
type Accept struct {
	Host Host `json:"host"`
}

// End is one end of the connections of an engine, or a part of them: each end sends as many
// as it takes.
type End struct {
	Engine      int      `json:"engine"`
	Memory      []byte   `json:"memory,omitempty"`      // descriptor, in the first of an engine
	Connections [][]byte `json:"connections,omitempty"` // descriptors, in their order
	Port        uint16   `json:"port,omitempty"`        // to dial instead, at the server
	Last        bool     `json:"last"`                  // of all engines
}

// EndConnections is how many connections one End has at most.
const EndConnections = 256

// Connected says that all connections are ready at the server.
type Connected struct{}

// Begin announces a step of the plan.
type Begin struct {
	Step int `json:"step"`
}

// Ready says that the server is ready for it.
type Ready struct{}

// Stop says that the client has measured.
type Stop struct{}

// Outcome is what the server has to say about a step.
type Outcome struct {
	Busy       float64   `json:"busy"`           // processors that it used, on average
	Rate       float64   `json:"rate,omitempty"` // operations a second of its own, in both directions
	Peak       float64   `json:"peak,omitempty"` // the highest rate
	Operations int64     `json:"operations,omitempty"`
	Checked    int64     `json:"checked,omitempty"` // pieces of data that were verified
	Damage     string    `json:"damage,omitempty"`  // what was wrong with the first that differed
	Counters   []Counter `json:"counters,omitempty"`
	Swapped    uint64    `json:"swapped,omitempty"` // pages
}

// Counter is the change of one of the device's counters.
type Counter struct {
	Name  string `json:"name"`
	Delta int64  `json:"delta"`
}

// Bye ends a test, and is answered by another: after the last test, when the server is ready
// for the next client.
type Bye struct {
	Last bool `json:"last"`
}

// Fault ends the conversation.
type Fault struct {
	Reason string `json:"reason"`
}

// Error implements error.
func (f *Fault) Error() string { return "the other end says: " + f.Reason }

func (*Request) kind() Kind   { return kindRequest }
func (*Accept) kind() Kind    { return kindAccept }
func (*End) kind() Kind       { return kindEnd }
func (*Connected) kind() Kind { return kindConnected }
func (*Begin) kind() Kind     { return kindBegin }
func (*Ready) kind() Kind     { return kindReady }
func (*Stop) kind() Kind      { return kindStop }
func (*Outcome) kind() Kind   { return kindOutcome }
func (*Bye) kind() Kind       { return kindBye }
func (*Fault) kind() Kind     { return kindFault }

// Sanitize makes what an end says about itself fit to be printed.
func (h *Host) Sanitize() {
	m := &h.Machine
	for _, s := range []*string{&h.Device, &h.Driver, &h.Firmware, &h.GID, &h.GIDType, &h.Link,
		&m.ID, &m.OS, &m.Arch, &m.Kernel, &m.CPU, &m.Go, &m.Verbena, &m.Governor} {
		*s = printable(*s)
	}
}

// Sanitize makes the outcome fit to be printed, and figures that cannot be true zero.
func (o *Outcome) Sanitize() {
	for _, f := range []*float64{&o.Busy, &o.Rate, &o.Peak} {
		if !(*f >= 0) || math.IsInf(*f, 0) {
			*f = 0
		}
	}
	o.Operations, o.Checked = max(o.Operations, 0), max(o.Checked, 0)
	o.Damage = printable(o.Damage)
	for i := range o.Counters {
		o.Counters[i].Name = printable(o.Counters[i].Name)
	}
}
