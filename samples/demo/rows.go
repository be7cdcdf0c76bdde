package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"

	"github.com/verbena-rdma/verbena/internal/pair"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

// row is a row of the table: one sample, and how it is run.
type row struct {
	name string
	way  pair.Way // in which descriptors travel; "-": there are none
	run  func(ctx context.Context) (pair.Result, error)
}

// rows returns all rows. The ways are distributed among the pairs. multicast: the device supports
// multicast, which some do not.
func rows(bin, dev string, multicast bool) (list []row) {
	args := []string{"-d", dev, "-timeout", "20s"}
	options := pair.Options{Bin: bin, RequesterArgs: args, ResponderArgs: args}
	addPair := func(p pair.Pair, way pair.Way) {
		o := options
		o.Way = way
		if p.Messages > 1 && !p.Values {
			p.Messages = 8
			o.RequesterArgs = append(args[:len(args):len(args)], "-nc", "8")
			o.ResponderArgs = o.RequesterArgs
		}
		list = append(list, row{p.Name, way, func(ctx context.Context) (pair.Result, error) { return runPair(ctx, p, o) }})
	}
	ways := pair.Ways()
	for i, p := range pair.Samples() {
		addPair(p, ways[i%len(ways)])
	}
	if multicast {
		addPair(pair.Multicast(), pair.Group)
	}
	for _, e := range pair.Examples() {
		list = append(list, row{e.Name, "-", func(ctx context.Context) (pair.Result, error) { return e.Run(ctx, options) }})
	}
	for _, name := range standalone() {
		command := append([]string{filepath.Join(bin, name)}, args...)
		list = append(list, row{name, "-", func(ctx context.Context) (pair.Result, error) { return pair.Single(ctx, command) }})
	}
	return list
}

// standalone returns the programs that have no peer and show how tasks are driven.
func standalone() []string {
	list := []string{"pe_polling"}
	if runtime.GOOS == "linux" {
		list = append(list, "pe_event") // epoll
	}
	return append(list, "pe_reactive", "pe_multi_context", "pe_async_stop", "pe_single_task_comp_cb",
		"pe_task_error", "pe_task_resubmit", "pe_task_try_submit", "graph", "sync_event_local")
}

// runPair runs both programs. It fails if one fails, or if they have not seen the same data.
func runPair(ctx context.Context, p pair.Pair, o pair.Options) (result pair.Result, err error) {
	if o.Scratch, err = os.MkdirTemp("", "verbena-demo-"); err != nil {
		return result, err
	}
	defer sample.Close(&err, func() error { return os.RemoveAll(o.Scratch) })
	if result, err = pair.Run(ctx, p, o); err != nil {
		return result, err
	}
	return result, result.Verify()
}
