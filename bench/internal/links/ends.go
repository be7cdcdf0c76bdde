package links

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/stats"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/test/netns"
	"github.com/verbena-rdma/verbena/transfer"
)

const (
	port    = ":7600"
	segment = "memory"
)

// withAgent opens an agent at so many cables, with memory that has that name.
func withAgent(o options, cables int, listen, name string, f func(a *transfer.Agent, memory []byte) error) (err error) {
	cfg := transfer.Config{Listen: listen}
	defer func() {
		for _, d := range cfg.Devices {
			err = errors.Join(err, d.Close())
		}
	}()
	for _, link := range []string{netns.Link, secondLink}[:cables] {
		d, err := device.Open("soft-" + link)
		if err != nil {
			return err
		}
		cfg.Devices = append(cfg.Devices, d)
	}
	a, err := transfer.Open(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	s, err := a.Register(name, make([]byte, o.size<<20), mmap.LocalReadWrite|mmap.RemoteWrite)
	if err != nil {
		return err
	}
	return f(a, s.Bytes())
}

// fill fills memory with what differs by place and by seed.
func fill(memory []byte, seed int) {
	for i := range memory {
		memory[i] = byte(i*7 + i>>8 + i>>16 + seed)
	}
}

// serve is the second host. It checks the memory when a note says that all is written.
func serve(ctx context.Context, o options) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return withAgent(o, 2, port, segment, func(a *transfer.Agent, memory []byte) error {
		fmt.Println("ready")
		want := make([]byte, len(memory))
		for {
			note, err := a.Note(ctx)
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			fill(want, int(note.Value))
			if !bytes.Equal(memory, want) {
				return errors.New("bytes that were written are wrong")
			}
			fmt.Println(right)
		}
	})
}

// measure is the first host.
func measure(ctx context.Context, o options) error {
	fmt.Printf("cables of %d Mbit/s, MTU %d; items of %d KiB\n\none cable and two, batches of %d MiB, MB/s:\n %6s %8s %8s %6s\n", o.rate, o.mtu, o.item, o.size/8, "round", "one", "two", "ratio")
	var ratios []float64
	for r := range o.rounds {
		var rate [2]float64
		for i := range rate {
			err := withAgent(o, i+1, "", "", func(a *transfer.Agent, memory []byte) error {
				remote, err := dial(ctx, a, o)
				if err != nil {
					return err
				}
				if _, err := write(ctx, a, o, remote, memory[:min(o.size<<17, 16*o.item<<10)], nil); err != nil { // which connects
					return err
				}
				t, err := write(ctx, a, o, remote, memory[:o.size<<17], nil)
				rate[i] = float64(o.size<<17) / t.Seconds() / 1e6
				return err
			})
			if err != nil {
				return err
			}
		}
		ratios = append(ratios, rate[1]/rate[0])
		fmt.Printf(" %6d %8.1f %8.1f %6.2f\n", r+1, rate[0], rate[1], rate[1]/rate[0])
	}
	fmt.Printf(" median %24.2f\n", stats.Median(ratios))
	return withAgent(o, 2, "", "", func(a *transfer.Agent, memory []byte) error { return death(ctx, a, o, memory) })
}

// death writes all of the memory, and has the second cable cut when a quarter has arrived.
func death(ctx context.Context, a *transfer.Agent, o options, memory []byte) error {
	remote, err := dial(ctx, a, o)
	if err != nil {
		return err
	}
	fill(memory, 1)
	var before, last int64 // bytes
	var wasCut, moved time.Time
	var pause time.Duration
	spent, err := write(ctx, a, o, remote, memory, func(n int64, now time.Time) {
		switch {
		case wasCut.IsZero():
			if n >= int64(len(memory)/4) {
				fmt.Println(cut)
				wasCut, moved, before, last = now, now, n, n
			}
		case n > last:
			pause = max(pause, now.Sub(moved))
			moved, last = now, n
		}
	})
	if err != nil {
		return err
	}
	c, after := a.Counters(), time.Since(wasCut)
	fmt.Printf("\none of two cables is cut in a batch of %d MiB, after %d MiB:\n completed in %.2f s, %.2f s after the cut, %.1f MB/s then\n longest pause without an item that ended %v; %d pieces repeated, %d connections lost\n",
		o.size, before>>20, spent.Seconds(), after.Seconds(), float64(int64(len(memory))-before)/after.Seconds()/1e6, pause.Round(time.Millisecond), c.Repeated, c.Lost)
	return nil
}

// dial returns the memory of the second host.
func dial(ctx context.Context, a *transfer.Agent, o options) (*transfer.RemoteSegment, error) {
	peer, err := a.Dial(ctx, o.dial)
	if err != nil {
		return nil, err
	}
	return peer.Segment(ctx, segment)
}

// write writes memory to the second host. With progress, which is told how many bytes have arrived, a note comes after it.
func write(ctx context.Context, a *transfer.Agent, o options, remote *transfer.RemoteSegment, memory []byte, progress func(n int64, now time.Time)) (time.Duration, error) {
	var b transfer.Batch
	for at := 0; at < len(memory); at += o.item << 10 {
		b.Write(remote, at, memory[at:][:o.item<<10])
	}
	if progress != nil {
		b.Note(remote.Peer(), 1)
	}
	began := time.Now()
	h, err := a.Submit(&b)
	if err != nil {
		return 0, err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for progress != nil && errors.Is(h.Err(), transfer.ErrPending) && ctx.Err() == nil {
		_, n := h.Progress()
		progress(n, <-tick.C)
	}
	err = h.Wait(ctx)
	return time.Since(began), err
}
