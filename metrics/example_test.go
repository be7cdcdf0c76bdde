package metrics_test

import (
	"errors"
	"expvar"
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/metrics"
	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft"
)

// Package expvar takes the structs of counters as they are.
func Example_expvar() {
	dev, err := soft.Open(soft.Config{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = dev.Close() }()
	stack, err := rsocket.New(rsocket.Config{Device: dev})
	if err != nil {
		panic(err)
	}
	defer func() { _ = stack.Close() }()
	expvar.Publish("rsocket", expvar.Func(func() any { return stack.Counters() }))
	fmt.Println(strings.Contains(expvar.Get("rsocket").String(), `"Accepted":0`))
	// Output: true
}

// A device lists its counters, with what they count.
func ExampleDevice() {
	dev, err := soft.Open(soft.Config{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = dev.Close() }()
	var source metrics.Source = metrics.Device(dev)
	for object := range source.Metrics(false) {
		for _, c := range object.Counters {
			if c.Name == "np_cnp_sent" {
				fmt.Printf("%s: %s: %d, %s\n", object.Kind, c.Name, c.Value, c.Help)
			}
		}
	}
	// Output: device: np_cnp_sent: 0, congestion notifications sent
}

// A program lets verbena stat see the default stacks of package rsocket.
func ExampleServe() {
	served, err := metrics.Serve(rsocket.DefaultMetrics())
	if err != nil {
		if !errors.Is(err, errors.ErrUnsupported) { // not on Linux
			panic(err)
		}
		return
	}
	defer func() { _ = served.Close() }()
	fmt.Println(len(metrics.Totals(rsocket.DefaultMetrics()))) // what the tool shows: there is no stack yet
	// Output: 0
}
