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

// message returns an empty message of the kind, or nil if there is no such kind.
func (k Kind) message() Message {
	if int(k) >= len(kinds) || kinds[k].make == nil {
		return nil
	}
	return kinds[k].make()
}

// Message is one of the messages below.
type Message interface{ kind() Kind }

// Request asks for a test. It is the first message of a client, and the first of each further
// test.
type Request struct {
	Plan plan.Plan `json:"plan"`
	// Token authenticates the client's connections, if the connection manager makes them: the
	// client sends it again when it dials the server's engines.
	Token []byte `json:"token,omitempty"`
}

// TokenLen is the length of a Token.
const TokenLen = 16

// Host is how an end describes itself.
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

// End describes one end of an engine's connections, or of a part of them. Each end sends as
// many Ends as it needs.
type End struct {
	Engine      int      `json:"engine"`
	Memory      []byte   `json:"memory,omitempty"`      // descriptor, in the first End of an engine
	Connections [][]byte `json:"connections,omitempty"` // descriptors, in the order of the connections
	Port        uint16   `json:"port,omitempty"`        // to dial at the server, instead of descriptors
	Last        bool     `json:"last"`                  // no End of any engine follows

	Agent string `json:"agent,omitempty"` // the address of one of package transfer, instead of an engine
}

// EndConnections is the maximum number of connections in one End.
const EndConnections = 256

// Connected reports that all connections are ready at the server.
type Connected struct{}

// Begin announces a step of the plan.
type Begin struct {
	Step int `json:"step"`
}

// Ready reports that the server serves this client and, later, that it is ready for the step.
type Ready struct{}

// Stop reports that the client has finished measuring the step.
type Stop struct{}

// Outcome is the server's part of the result of a step.
type Outcome struct {
	Busy       float64   `json:"busy"`           // processors that it used, on average
	Rate       float64   `json:"rate,omitempty"` // the server's own operations a second, if bidirectional
	Peak       float64   `json:"peak,omitempty"` // the highest rate
	Operations int64     `json:"operations,omitempty"`
	Checked    int64     `json:"checked,omitempty"` // pieces of data that were verified
	Damage     string    `json:"damage,omitempty"`  // what was wrong with the first piece that differed
	Counters   []Counter `json:"counters,omitempty"`
	Swapped    uint64    `json:"swapped,omitempty"` // pages
}

// Counter is the change of one of the device's counters.
type Counter struct {
	Name  string `json:"name"`
	Delta int64  `json:"delta"`
}

// Bye ends a test. The server answers with another Bye; after the last test, it does so when
// it is ready for the next client.
type Bye struct {
	Last bool `json:"last"`
}

// Fault ends the conversation, with the reason.
type Fault struct {
	Reason string `json:"reason"`
}

// Error implements error.
func (f *Fault) Error() string { return "the other end reports: " + f.Reason }

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

// Sanitize makes the strings of h, which came from the network, safe to print.
func (h *Host) Sanitize() {
	m := &h.Machine
	for _, s := range []*string{&h.Device, &h.Driver, &h.Firmware, &h.GID, &h.GIDType, &h.Link,
		&m.ID, &m.OS, &m.Arch, &m.Kernel, &m.CPU, &m.Go, &m.Verbena, &m.Governor} {
		*s = printable(*s)
	}
}

// Sanitize makes the strings of the outcome safe to print, and sets impossible figures to
// zero.
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
