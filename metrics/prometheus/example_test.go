package prometheus_test

import (
	"fmt"

	client "github.com/prometheus/client_golang/prometheus"

	"github.com/verbena-rdma/verbena/metrics"
	"github.com/verbena-rdma/verbena/metrics/prometheus"
	"github.com/verbena-rdma/verbena/soft"
)

// The program makes the registry, and serves it at a port of its own:
//
//	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
func Example() {
	dev, err := soft.Open(soft.Config{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = dev.Close() }()
	registry := client.NewRegistry()
	registry.MustRegister(prometheus.New(metrics.Device(dev)))
	families, err := registry.Gather()
	for _, f := range families {
		if f.GetName() == "verbena_device_np_cnp_sent_total" {
			fmt.Println(f.GetHelp(), f.GetType(), f.GetMetric()[0].GetCounter().GetValue(), err)
		}
	}
	// Output: congestion notifications sent COUNTER 0 <nil>
}
