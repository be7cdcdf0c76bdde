package pair

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
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
	a, b := newProcess(ctx, server), newProcess(ctx, client)
	begin := time.Now()
	line := &firstLine{got: make(chan struct{})}
	if e.Printed {
		a.cmd.Stdout = io.MultiWriter(&a.stdout, line)
	}
	if err := a.cmd.Start(); err != nil {
		return r, err
	}
	ended := make(chan struct{})
	go func() { a.wait(); close(ended) }()
	if e.Printed {
		select {
		case <-line.got:
			b = newProcess(ctx, append(client, line.text()))
		case <-ended:
			r = Result{Responder: a.side(), Elapsed: time.Since(begin)}
			return r, fmt.Errorf("%s ended with code %d and printed no address", e.Server, r.Responder.Code)
		}
	}
	if err = b.cmd.Start(); err == nil {
		b.wait()
		if b.side().Code != 0 { // the server might wait forever
			_ = a.cmd.Cancel()
		}
	} else {
		_ = a.cmd.Process.Kill()
	}
	<-ended
	r = Result{Requester: b.side(), Responder: a.side(), Elapsed: time.Since(begin)}
	if err == nil && (r.Requester.Code != 0 || r.Responder.Code != 0) {
		err = fmt.Errorf("%s ended with code %d, %s with code %d", e.Client, r.Requester.Code, e.Server, r.Responder.Code)
	}
	return r, err
}

// firstLine keeps the first line that is written to it.
type firstLine struct {
	mu   sync.Mutex
	line bytes.Buffer
	got  chan struct{} // closed when the line is complete
	done bool
}

// Write implements io.Writer.
func (f *firstLine) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.done {
		f.line.Write(b)
		if f.done = bytes.ContainsRune(f.line.Bytes(), '\n'); f.done {
			close(f.got)
		}
	}
	return len(b), nil
}

func (f *firstLine) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	line, _, _ := strings.Cut(f.line.String(), "\n")
	return line
}
