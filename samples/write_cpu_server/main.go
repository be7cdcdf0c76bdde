// Command write_cpu_server fills the memory of write_cpu_client with random data, by RDMA
// writes from an SRD queue pair: page by page, to places chosen by the client. It prints its
// address for the client, and serves clients until it is interrupted.
package main

import (
	"context"
	"errors"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/samples/internal/mt19937"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/samples/internal/writecpu"
	"github.com/verbena-rdma/verbena/verbs"
)

var clients uint32

func main() {
	sample.Main(sample.Program{
		Name:   "write_cpu_server",
		About:  "Writes random data to the memory of write_cpu_client, over an SRD queue pair.",
		Device: "soft-lo",
		Flags: func(f *sample.Flags) {
			f.Uint32(&clients, "n", "clients", "number", "number of clients to serve before the program ends; 0: no limit")
		},
	}, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close)
	e, err := writecpu.Open(dev, s.GIDIndex)
	if err != nil {
		return err
	}
	defer sample.Close(&err, e.Close)
	var data [writecpu.Regions]*writecpu.Region
	for i := range data {
		if data[i], err = e.Register(writecpu.Memory, 0); err != nil {
			return err
		}
	}
	var requests writecpu.Requests
	e.OnMessage = func(b []byte) {
		if err := requests.Add(b); err != nil {
			s.Log.Warn().Err(err).Msg("ignoring an invalid message")
		}
	}
	s.Print("%v", e.Address)

	for served := uint32(0); clients == 0 || served < clients; served++ {
		var c *writecpu.Connect
		var f *writecpu.RandomFill
		if err := e.Run(ctx, func() bool { c, f = requests.Next(); return c != nil }); err != nil {
			return err
		}
		if err := fill(ctx, e, data, c, f); ctx.Err() != nil {
			return context.Cause(ctx)
		} else if err != nil { // the request is invalid, or the client has gone
			s.Log.Warn().Err(err).Msgf("client %v", c.Client)
			continue
		}
		s.Print("client %v: %d pages of %d bytes to each of %d regions", c.Client, len(f.Pages), f.PageSize, writecpu.Regions)
	}
	return nil
}

// fill writes the pages. The last write has immediate data. It is posted when all others have
// completed, since SRD could deliver it before them. fill returns when no write is in flight.
func fill(ctx context.Context, e *writecpu.Endpoint, data [writecpu.Regions]*writecpu.Region, c *writecpu.Connect, f *writecpu.RandomFill) error {
	failed := f.Check(c)
	if failed != nil {
		return failed
	}
	size, posted, done := int(f.PageSize), 0, 0
	idle := func() bool { return done == posted }
	completed := func(err error) { done++; failed = errors.Join(failed, err) }
	write := func(i, n int, wr verbs.SendWR) {
		wr.RemoteAddr, wr.RKey = c.Regions[i].Addr+uint64(f.Pages[n])*f.PageSize, c.Regions[i].RKey
		if failed == nil {
			posted++
			if err := e.Post(ctx, c.Client, wr, data[i], n*size, size, completed); err != nil {
				completed(err) // the write was not posted
			}
		}
	}
	last := len(f.Pages) - 1
	for i := range c.Regions {
		if failed == nil {
			mt19937.New(f.Seed + uint64(i)).Fill(data[i].Mem[:size*len(f.Pages)])
		}
		for n := range f.Pages {
			if i < writecpu.Regions-1 || n < last {
				write(i, n, verbs.SendWR{Op: verbs.OpWrite})
			}
		}
	}
	if err := e.Run(ctx, idle); err != nil {
		return err
	}
	write(writecpu.Regions-1, last, verbs.SendWR{Op: verbs.OpWriteImm, Imm: f.Context})
	return errors.Join(e.Run(ctx, idle), failed)
}
