package pair

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Example names a server and a client that verify the data they transfer themselves.
type Example struct {
	Name, Server, Client string
	// Printed: the server prints its address, and the client gets it as an argument. False:
	// both get the same address as an argument.
	Printed    bool
	ServerArgs []string // further arguments of the server
	// ByDevice: the server listens on an address of its device, through the connection
	// manager, and not on a TCP address.
	ByDevice bool
}

// Examples returns the examples.
func Examples() []Example {
	return []Example{
		{Name: "verbs_rc_example_server, _client", Server: "verbs_rc_example_server", Client: "verbs_rc_example_client"},
		{Name: "efa_rdma_write_server, _client", Server: "efa_rdma_write_server", Client: "efa_rdma_write_client"},
		{Name: "write_cpu_server, _client", Server: "write_cpu_server", Client: "write_cpu_client", Printed: true, ServerArgs: []string{"-n", "1"}},
		{Name: "lab3_receiver, lab3_sender", Server: "lab3_receiver", Client: "lab3_sender", ByDevice: true},
	}
}

// Run runs both programs: the client is the requester. When ctx ends, it stops them. It
// returns an error if the programs could not be run, or if one failed.
func (e Example) Run(ctx context.Context, o Options) (r Result, err error) {
	if o.Address == "" {
		if o.Address, err = freeAddress(); err != nil {
			return r, err
		}
	}
	server := append(append(o.ResponderPrefix[:len(o.ResponderPrefix):len(o.ResponderPrefix)], filepath.Join(o.Bin, e.Server)), e.ServerArgs...)
	client := append(o.RequesterPrefix[:len(o.RequesterPrefix):len(o.RequesterPrefix)], filepath.Join(o.Bin, e.Client))
	server, client = append(server, o.ResponderArgs...), append(client, o.RequesterArgs...)
	if !e.Printed {
		server, client = append(server, "-p", o.Address), append(client, "-s", o.Address)
	}
	a, b := &program{words: server}, &program{words: client}
	begin := time.Now()
	if err := a.start(ctx); err != nil {
		return r, err
	}
	if e.Printed {
		err := a.process.AwaitFunc(ctx, "print its address", func() bool { return strings.Contains(a.stdout.String(), "\n") })
		if err != nil {
			a.process.Kill()
			return Result{Responder: a.side(), Elapsed: time.Since(begin)}, err
		}
		address, _, _ := strings.Cut(a.stdout.String(), "\n")
		b.words = append(b.words, address)
	}
	if err = b.start(ctx); err != nil {
		a.process.Kill()
	} else if b.process.Code() != 0 { // the server might wait forever
		_ = a.process.SignalGroup(syscall.SIGTERM)
	}
	_ = a.process.Wait()
	r = Result{Requester: b.side(), Responder: a.side(), Elapsed: time.Since(begin)}
	if err == nil && (r.Requester.Code != 0 || r.Responder.Code != 0) {
		err = fmt.Errorf("%s ended with code %d, %s with code %d", e.Client, r.Requester.Code, e.Server, r.Responder.Code)
	}
	return r, err
}
