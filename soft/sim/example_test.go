package sim_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// A client connects to a server whose network is down for the first ten minutes. They take some
// milliseconds.
func Example() {
	listen := func(ctx context.Context, dev verbs.Device) error {
		return runUntilEnd(ctx, dev, func(r *rdma.Connections) error {
			_, err := r.Listen(":7471", rdma.ListenConfig{})
			return err
		}, func() {})
	}
	err := sim.Simulate(1, func(s *sim.Sim) {
		server, client := s.Host("server"), s.Host("client")
		connected := false
		server.Run(listen)
		client.Run(func(ctx context.Context, dev verbs.Device) error {
			return runUntilEnd(ctx, dev, func(r *rdma.Connections) error {
				_, err := r.Dial(server.Addr().String()+":7471", rdma.DialConfig{Timeout: rdma.Forever})
				return err
			}, func() { connected = true })
		})
		s.Cut(client, server)
		s.After(10*time.Minute, s.Heal)
		s.RunUntil(func() bool { return connected }, time.Hour)
		fmt.Println("connected within a minute:", s.Now()-10*time.Minute < time.Minute)
	})
	fmt.Println("error:", err)
	// Output:
	// connected within a minute: true
	// error: <nil>
}

// runUntilEnd runs a context that begins with start, until ctx ends.
func runUntilEnd(ctx context.Context, dev verbs.Device, start func(*rdma.Connections) error, ready func()) error {
	engine := pe.New(pe.Config{})
	defer engine.Close()
	r, err := rdma.New(dev, rdma.Config{Engine: engine})
	if err != nil {
		return err
	}
	r.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			r.Fail(start(r))
		}
	})
	r.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, err error) {
		if state == rdma.Ready {
			ready()
		}
	})
	if err := r.Start(); err != nil {
		return err
	}
	return engine.Run(ctx)
}

// A schedule is printed in words, and as Go code for [sim.Replay].
func ExampleSchedule() {
	s := sim.Schedule{
		{At: 2 * time.Second, For: 500 * time.Millisecond, Kind: sim.Crash, Hosts: []string{"a"}},
		{At: 3 * time.Second, For: time.Second, Kind: sim.OneWayOut, Hosts: []string{"a"}, Rest: []string{"b", "c"}},
	}
	for _, f := range s {
		fmt.Println(f)
	}
	fmt.Printf("%#v\n", s[:1])
	// Output:
	// 2s for 500ms: host a crashes
	// 3s for 1s: nothing gets from a to b, c
	// sim.Schedule{
	// 	{At: 2 * time.Second, For: 500 * time.Millisecond, Kind: sim.Crash, Hosts: []string{"a"}},
	// }
}

// What is synced survives a crash. Of what is not, the seed decides.
func ExampleDisk() {
	err := sim.Simulate(1, func(s *sim.Sim) {
		h := s.Host("a")
		log, err := h.Disk().Create("log")
		if err == nil {
			_, err = log.Write([]byte("synced"))
		}
		if err := errors.Join(err, log.Sync(), h.Disk().Sync()); err != nil {
			s.Fatal(err)
		}
		_, _ = log.Write([]byte(", perhaps lost"))
		h.Crash()
		left, err := fs.ReadFile(h.Disk(), "log")
		fmt.Println(strings.HasPrefix(string(left), "synced"), err)
	})
	fmt.Println("error:", err)
	// Output:
	// true <nil>
	// error: <nil>
}
