package prometheus_test

import (
	"bytes"
	"context"
	"io"
	"iter"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	model "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	prommodel "github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/metrics"
	"github.com/verbena-rdma/verbena/metrics/prometheus"
	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/transfer"
	"github.com/verbena-rdma/verbena/verbs"
)

// bed is a stack with a listener that echoes, and a registry with the stack and its device.
type bed struct {
	t        *testing.T
	stack    *rsocket.Stack
	listener *rsocket.Listener
	registry *client.Registry
	echoes   sync.WaitGroup
}

func newBed(t *testing.T) *bed {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	b := &bed{t: t, registry: client.NewPedanticRegistry()}
	b.stack, err = rsocket.New(rsocket.Config{Device: dev})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, b.stack.Close())
		b.echoes.Wait()
	})
	b.listener, err = b.stack.Listen(net.JoinHostPort(addressOf(t, dev), "0"))
	require.NoError(t, err)
	b.echoes.Go(func() {
		for {
			c, err := b.listener.Accept()
			if err != nil {
				return
			}
			b.echoes.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
	b.registry.MustRegister(prometheus.New(metrics.Device(dev), b.stack))
	return b
}

// addressOf is the first address of a device.
func addressOf(t *testing.T, dev verbs.Device) string {
	gids, err := dev.GIDs(1)
	require.NoError(t, err)
	return gids[0].GID.Addr().Unmap().String()
}

// exchange sends n bytes through a connection of its own, and waits for all of them.
func (b *bed) exchange(n int) {
	c, err := b.stack.Dial(context.Background(), b.listener.Addr().String())
	if !assert.NoError(b.t, err) {
		return
	}
	_, err = c.Write(make([]byte, n))
	assert.NoError(b.t, err)
	_, err = io.ReadFull(c, make([]byte, n))
	assert.NoError(b.t, err)
	assert.NoError(b.t, c.Close())
	c.Wait()
}

// scrape is what a server of Prometheus reads: the text format, parsed again.
func (b *bed) scrape() map[string]*model.MetricFamily {
	families, err := b.registry.Gather()
	require.NoError(b.t, err)
	var text bytes.Buffer
	e := expfmt.NewEncoder(&text, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		require.NoError(b.t, e.Encode(f))
	}
	parser := expfmt.NewTextParser(prommodel.UTF8Validation)
	parsed, err := parser.TextToMetricFamilies(&text)
	require.NoError(b.t, err)
	require.Len(b.t, parsed, len(families))
	return parsed
}

// value is the value of a metric that has one set of labels.
func value(families map[string]*model.MetricFamily, name string) float64 {
	m := families[name].GetMetric()[0]
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

// Metrics can be read at any time under load. promlint finds nothing in them, no total falls, and at
// the end they have counted what was sent.
func TestUnderLoad(t *testing.T) {
	const workers, rounds, size = 4, 20, 100_000
	b := newBed(t)
	var load sync.WaitGroup
	var done atomic.Bool
	for range workers {
		load.Go(func() {
			for range rounds {
				b.exchange(size)
			}
		})
	}
	go func() {
		load.Wait()
		done.Store(true)
	}()
	last := map[string]float64{}
	for scrapes := 0; !done.Load() || scrapes < 3; scrapes++ {
		problems, err := testutil.GatherAndLint(b.registry)
		require.NoError(t, err)
		require.Empty(t, problems)
		for name, f := range b.scrape() {
			if f.GetType() == model.MetricType_COUNTER {
				for _, m := range f.GetMetric() {
					require.GreaterOrEqual(t, m.GetCounter().GetValue(), last[name], name)
					last[name] = m.GetCounter().GetValue()
				}
			}
		}
	}
	load.Wait()
	now := b.scrape()
	require.EqualValues(t, workers*rounds, value(now, "verbena_stack_connections_dialled_total"))
	require.EqualValues(t, workers*rounds, value(now, "verbena_stack_connections_accepted_total"))
	require.GreaterOrEqual(t, value(now, "verbena_stack_sent_bytes_total"), float64(2*workers*rounds*size))
	require.GreaterOrEqual(t, value(now, "verbena_stack_received_bytes_total"), float64(2*workers*rounds*size))
	require.Positive(t, value(now, "verbena_device_rcvd_pkts_total"))
	require.Equal(t, "1", labels(now["verbena_device_rcvd_pkts_total"])["port"])
	require.Equal(t, b.stack.Device().Name(), labels(now["verbena_stack_sent_bytes_total"])["device"])
}

func labels(f *model.MetricFamily) map[string]string {
	all := map[string]string{}
	for _, l := range f.GetMetric()[0].GetLabel() {
		all[l.GetName()] = l.GetValue()
	}
	return all
}

// Connections that come and go leave no metrics behind: 10,000 of them, with -short 300.
func TestConnectionsLeaveNoMetrics(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 300
	}
	b := newBed(t)
	b.exchange(1)
	series := func() (n int) {
		for _, f := range b.scrape() {
			n += len(f.GetMetric())
		}
		return n
	}
	before := series()
	for range n {
		b.exchange(1)
	}
	require.Equal(t, before, series())
	require.EqualValues(t, n+1, value(b.scrape(), "verbena_stack_connections_dialled_total"))
}

// An agent of package transfer has metrics, in which promlint finds nothing, and so have the contexts of its devices.
func TestAgent(t *testing.T) {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	agent, err := transfer.Open(transfer.Config{Devices: []verbs.Device{dev}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, agent.Close()) })
	registry := client.NewPedanticRegistry()
	registry.MustRegister(prometheus.New(agent))
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.Empty(t, problems)
	n, err := testutil.GatherAndCount(registry, "verbena_agent_items_total", "verbena_agent_items_pending", "verbena_agent_item_bytes_total",
		"verbena_context_connections_ready")
	require.NoError(t, err)
	require.Equal(t, 4, n)
}

// list is a source of fixed objects.
type list []metrics.Object

func (l list) Metrics(bool) iter.Seq[metrics.Object] { return slices.Values(l) }

// adapter is as a driver of the kernel is: no texts, words, and several ports.
var adapter = list{{Kind: "device", Name: "mlx5_0", Device: "mlx5_0", Counters: []verbs.Counter{
	{Name: "rcvd_pkts", Value: 3, Port: 1}, {Name: "port_xmit_data", Value: 5, Unit: "words", Port: 2}, {Name: "odd-name", Value: 1}, {Name: "odd.name", Value: 1},
}}}

// An adapter beside a software device: names that both have get one description.
func TestAdapter(t *testing.T) {
	b := newBed(t)
	registry := client.NewPedanticRegistry()
	registry.MustRegister(prometheus.New(adapter, metrics.Device(b.stack.Device()), b.stack, b.stack))
	families, err := registry.Gather()
	require.NoError(t, err)
	found := map[string]*model.MetricFamily{}
	for _, f := range families {
		found[f.GetName()] = f
	}
	require.Len(t, found["verbena_device_rcvd_pkts_total"].GetMetric(), 2)
	require.Contains(t, found["verbena_device_rcvd_pkts_total"].GetHelp(), "valid packets")
	require.EqualValues(t, 20, value(found, "verbena_device_port_xmit_data_bytes_total"))
	require.Equal(t, "2", labels(found["verbena_device_port_xmit_data_bytes_total"])["port"])
	require.Len(t, found["verbena_device_odd_name_total"].GetMetric(), 1)
}

// What several sources have is collected once: of a device the counters of one, of contexts the sum,
// also where their names are the same only as labels.
func TestSameObjects(t *testing.T) {
	context := func(name string) metrics.Object {
		return metrics.Object{Kind: "context", Name: name, Device: "mlx5_0", Counters: []verbs.Counter{{Name: "sent_messages", Value: 2, Help: "messages"}}}
	}
	registry := client.NewPedanticRegistry()
	registry.MustRegister(prometheus.New(adapter, list{context("a\xff"), context("a\xfe")}, adapter))
	families, err := registry.Gather()
	require.NoError(t, err)
	found := map[string]*model.MetricFamily{}
	for _, f := range families {
		require.Len(t, f.GetMetric(), 1, f.GetName())
		found[f.GetName()] = f
	}
	require.EqualValues(t, 3, value(found, "verbena_device_rcvd_pkts_total"))
	require.EqualValues(t, 4, value(found, "verbena_context_sent_messages_total"))
	require.Equal(t, "a?", labels(found["verbena_context_sent_messages_total"])["context"])
}
