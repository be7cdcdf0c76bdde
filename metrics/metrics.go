// Package metrics passes counters on to programs that collect them. Devices, contexts, connections
// and streams have a method Counters each, whose result a program may use as it is: for package
// expvar,
//
//	expvar.Publish("rdma", expvar.Func(func() any { return connections.Counters() }))
//
// The devices of [Device], and the contexts and stacks of packages rdma and rsocket, are a [Source].
// metrics/prometheus, a module of its own, collects them for Prometheus, and [Serve] for the command
// verbena stat.
package metrics

import "github.com/verbena-rdma/verbena/verbs"

// Source has counters: those of one object, or of several.
type Source interface {
	// Metrics returns the present counters. If each is set, it returns those of each connection,
	// too, behind those of their context or stack, which have the sums. Any goroutine may call it.
	Metrics(each bool) []Object
}

// Object is the counters of a device, a context, a connection, a stack or a stream.
type Object struct {
	Kind     string          // "device", "context", "connection", "stack" or "stream"
	Name     string          // the device's or context's; the number of a connection
	Device   string          // that it uses
	State    string          // of a context or connection
	Path     string          // of the packets of a connection or stream: see verbs.Path
	Local    string          // the address of this end
	Peer     string          // the address of the peer
	Counters []verbs.Counter // in a stable order
}

// Device is an open device as a Source. While it cannot be read, the Source has nothing.
func Device(dev verbs.Device) Source { return source{dev} }

type source struct{ dev verbs.Device }

// Metrics implements Source.
func (s source) Metrics(bool) []Object {
	list, err := s.dev.Counters()
	if err != nil {
		return nil
	}
	return []Object{{Kind: "device", Name: s.dev.Name(), Device: s.dev.Name(), Counters: list}}
}
