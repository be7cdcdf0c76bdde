// Package metrics passes counters on to programs that collect them. Devices, contexts, connections
// and streams have a method Counters each, whose result a program may use as it is: for package
// expvar,
//
//	expvar.Publish("rdma", expvar.Func(func() any { return connections.Counters() }))
//
// The devices of [Device], and the contexts, stacks and agents of packages rdma, rsocket and transfer, are a [Source].
// metrics/prometheus, a module of its own, collects them for Prometheus, and [Serve] for the command
// verbena stat.
package metrics

import (
	"iter"
	"slices"
	"strings"

	"github.com/verbena-rdma/verbena/internal/counters"
	"github.com/verbena-rdma/verbena/verbs"
)

// Source has counters: those of one object, or of several.
type Source interface {
	// Metrics goes through the objects with their present counters. If each is set, connections and
	// streams come too, behind their context or stack, which has the sums; there may be 100,000 of
	// them, so they are read one by one. Any goroutine may call it.
	Metrics(each bool) iter.Seq[Object]
}

// Object is the counters of a device, a context, a connection, a stack, a stream or an agent.
type Object struct {
	Kind     string          // "device", "context", "connection", "stack", "stream" or "agent"
	Name     string          `json:",omitempty"` // the device's or context's; a stack's device; the number of a connection
	Device   string          `json:",omitempty"` // that it uses; an agent's, with commas between
	State    string          `json:",omitempty"` // of a context or connection
	Path     string          `json:",omitempty"` // of the packets of a connection or stream: see verbs.Path
	Local    string          `json:",omitempty"` // the address of this end
	Peer     string          `json:",omitempty"` // the address of the peer
	Counters []verbs.Counter `json:",omitempty"` // in a stable order
}

// Device is an open device as a Source. While it cannot be read, the Source has nothing.
func Device(dev verbs.Device) Source { return source{dev} }

type source struct{ dev verbs.Device }

// Metrics implements Source.
func (s source) Metrics(bool) iter.Seq[Object] {
	return func(yield func(Object) bool) {
		if list, err := s.dev.Counters(); err == nil {
			yield(Object{Kind: "device", Name: s.dev.Name(), Device: s.dev.Name(), Counters: list})
		}
	}
}

// Totals are the devices, contexts, stacks and agents of the sources, in the order in which they come, for
// exporters that show no connections. Of several with one kind, name and device there is one object:
// the first of a device, whose counters all sources share; of the others, the sum of the
// numbers and the longest of the times. So give each source once; a Stacks of package rsocket has its
// stacks. Names are valid UTF-8.
func Totals(sources ...Source) (list []Object) {
	for _, source := range sources {
		for o := range source.Metrics(false) {
			o.Name, o.Device = strings.ToValidUTF8(o.Name, "?"), strings.ToValidUTF8(o.Device, "?")
			at := slices.IndexFunc(list, func(p Object) bool { return p.Kind == o.Kind && p.Name == o.Name && p.Device == o.Device })
			switch {
			case at < 0:
				list = append(list, o)
			case o.Kind != "device":
				list[at].Counters = counters.AddLists(slices.Clone(list[at].Counters), o.Counters)
			}
		}
	}
	return list
}
