package sockets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/footprint"
	"github.com/verbena-rdma/verbena/bench/internal/subprocess"
)

// request is what a process is asked to do. It answers each request by a reply.
type request struct {
	Do          string
	Address     string        `json:",omitempty"` // to listen on, or of the peer
	Size        int           `json:",omitempty"` // bytes
	Count       int           `json:",omitempty"` // connections or requests at a time
	Time        time.Duration `json:",omitempty"`
	Connections int           `json:",omitempty"` // that there must be room for
}

type reply struct {
	Error   string    `json:",omitempty"`
	Address string    `json:",omitempty"`
	Value   float64   `json:",omitempty"`
	Values  []float64 `json:",omitempty"`
	Memory  footprint.Footprint
	Used    time.Duration // processor time of the process for the request
}

// process is another process.
type process struct {
	*subprocess.Process
	to   *json.Encoder
	from *json.Decoder
}

// startProcess starts a process on a device, or one for TCP. name names its profile.
func startProcess(ctx context.Context, o options, prefix []string, dev, name string) (*process, error) {
	args := []string{"rsocket", "-child", "-d", dev, fmt.Sprintf("-counters=%v", o.counters),
		"-send-buffer", fmt.Sprint(o.send), "-receive-buffer", fmt.Sprint(o.receive)}
	if o.profile != "" {
		args = append(args, "-cpuprofile", filepath.Join(o.profile, name+".pprof"))
	}
	p, err := subprocess.Start(ctx, prefix, args)
	if err != nil {
		return nil, err
	}
	return &process{p, json.NewEncoder(p.In), json.NewDecoder(p.Out)}, nil
}

// call has the process do something.
func (p *process) call(q request) (r reply, err error) {
	if err = p.to.Encode(q); err == nil {
		err = p.from.Decode(&r)
	}
	if err == nil && r.Error != "" {
		err = errors.New(r.Error)
	}
	if err != nil {
		return r, fmt.Errorf("%s by another process: %w", q.Do, err)
	}
	return r, nil
}

// stop ends the process.
func (p *process) stop() error {
	return errors.Join(p.In.Close(), p.Wait())
}

// way is a way to connect two processes.
type way struct {
	name    string // in tables
	devices [2]string
	listen  string // address of the server, which has devices[0]
	prefix  [2][]string
}

// pair is a server and a client.
type pair struct {
	way
	server, client *process
}

// start starts the two processes of a way.
func (w way) start(ctx context.Context, o options, connections int) (p *pair, err error) {
	p = &pair{way: w}
	if p.server, err = startProcess(ctx, o, w.prefix[0], w.devices[0], w.name+" server"); err != nil {
		return nil, err
	}
	if p.client, err = startProcess(ctx, o, w.prefix[1], w.devices[1], w.name+" client"); err != nil {
		return nil, errors.Join(err, p.server.stop())
	}
	r, err := p.server.call(request{Do: "listen", Address: w.listen, Connections: connections})
	if err == nil {
		_, err = p.client.call(request{Do: "meet", Address: r.Address, Connections: connections})
	}
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// stop ends both processes, the client first.
func (p *pair) stop() error { return errors.Join(p.client.stop(), p.server.stop()) }

// measure has the client do something, and returns how many processors both have used meanwhile.
func (p *pair) measure(q request) (r reply, processors float64, err error) {
	before, err := p.server.call(request{Do: "used"})
	if err != nil {
		return r, 0, err
	}
	begin := time.Now()
	if r, err = p.client.call(q); err != nil {
		return r, 0, err
	}
	took := time.Since(begin).Seconds()
	after, err := p.server.call(request{Do: "used"})
	return r, (r.Used.Seconds() + after.Value - before.Value) / took, err
}
