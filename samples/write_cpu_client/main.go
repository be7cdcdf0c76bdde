// Command write_cpu_client asks write_cpu_server to fill its memory with random data, by RDMA
// writes over an SRD queue pair, and verifies it page by page. It takes the address that the
// server prints:
//
//	write_cpu_client ADDRESS [PAGE_SIZE NUM_PAGES]
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/samples/internal/mt19937"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/samples/internal/writecpu"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	sample.Main(sample.Program{
		Name:     "write_cpu_client",
		About:    "Asks write_cpu_server to write random data to its memory, and verifies the data.",
		Device:   "soft-lo",
		Operands: "ADDRESS [PAGE_SIZE NUM_PAGES]",
	}, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	server, size, pages, err := writecpu.Operands(s.Operands)
	if err != nil {
		return err
	}
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
	if n := writecpu.FillLen(pages); n > e.MaxMessage {
		return fmt.Errorf("%d pages: the request for them has %d bytes, but device %s sends at most %d in one message", pages, n, dev.Name(), e.MaxMessage)
	}

	// Two regions, and the places for the pages in each.
	connect := writecpu.Connect{Client: e.Address}
	var regions [writecpu.Regions]*writecpu.Region
	for i := range regions {
		if regions[i], err = e.Register(writecpu.Memory, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
			return err
		}
		connect.Regions[i] = writecpu.Remote{Addr: regions[i].MR.Addr(), Size: writecpu.Memory, RKey: regions[i].MR.RKey()}
	}
	fill := writecpu.RandomFill{Client: e.Address, Context: rand.Uint32(), Seed: rand.Uint64(), PageSize: uint64(size)}
	for _, p := range rand.Perm(writecpu.Memory / size)[:pages] {
		fill.Pages = append(fill.Pages, uint32(p))
	}

	// Send both messages, which may arrive in either order. Then wait for the last write.
	written := false
	e.OnWrite = func(imm uint32) { written = written || imm == fill.Context }
	out, err := e.Register(2*e.MaxMessage, 0)
	if err != nil {
		return err
	}
	var failed error
	sent := func(err error) { failed = errors.Join(failed, err) }
	first := len(connect.Append(out.Mem[:0]))
	second := len(fill.Append(out.Mem[first:first]))
	if err := e.Post(ctx, server, verbs.SendWR{Op: verbs.OpSend}, out, 0, first, sent); err != nil {
		return err
	}
	if err := e.Post(ctx, server, verbs.SendWR{Op: verbs.OpSend}, out, first, second, sent); err != nil {
		return err
	}
	s.Say("waiting for write_cpu_server to write %d pages", pages)
	if err := e.Run(ctx, func() bool { return written || failed != nil }); err != nil || failed != nil {
		return errors.Join(err, failed)
	}

	want := make([]byte, size*pages)
	for i, r := range regions {
		mt19937.New(fill.Seed + uint64(i)).Fill(want)
		for n, p := range fill.Pages {
			if got := r.Mem[int(p)*size:][:size]; !bytes.Equal(got, want[n*size:][:size]) {
				return fmt.Errorf("region %d, page %d: the data is wrong", i, p)
			}
		}
	}
	s.Print("the data is correct: %d pages of %d bytes in each of %d regions", pages, size, writecpu.Regions)
	return nil
}
