// Package links measures package transfer between two hosts that two cables connect: network
// namespaces, as root, with a limit of the rate of each cable.
package links

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/verbena-rdma/verbena/internal/process"
	"github.com/verbena-rdma/verbena/test/netns"
)

type options struct {
	rounds, mtu, rate, size, item int

	// Of the processes at the hosts:
	serve bool
	dial  string
}

// What the ends tell their parent.
const (
	cut   = "cut" // the second cable
	right = " the bytes are right"
)

// Run runs bench links.
func Run(ctx context.Context, args []string) error {
	var o options
	f := flag.NewFlagSet("bench links", flag.ExitOnError)
	f.IntVar(&o.rounds, "rounds", 5, "number of rounds")
	f.IntVar(&o.mtu, "mtu", 9000, "MTU of the cables")
	f.IntVar(&o.rate, "rate", 400, "rate of each cable in `Mbit/s`")
	f.IntVar(&o.size, "size", 1024, "`MiB` of the batch during which a cable is cut; the others have an eighth")
	f.IntVar(&o.item, "item", 1024, "`KiB` of an item")
	f.BoolVar(&o.serve, "serve", false, "run as the second host")
	f.StringVar(&o.dial, "dial", "", "run as the first host, with the second at this `address`")
	_ = f.Parse(args) // exits on an error
	switch {
	case f.NArg() > 0 || min(o.rounds, o.rate) < 1 || o.size < 8 || o.size > 1<<16 || o.item < 1 || o.size*128%o.item != 0:
		return errors.New("rounds and rate must be 1 or more, the size 8 or more, with an eighth that is a multiple of the item; and there are no arguments")
	case o.serve:
		return serve(ctx, o)
	case o.dial != "":
		return measure(ctx, o)
	}
	return parent(ctx, o, args)
}

// parent makes the hosts, and starts a process at each.
func parent(ctx context.Context, o options, args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	n, err := netns.MakeNetwork(ctx, 2, o.mtu)
	if err != nil {
		return err
	}
	defer n.Close()
	if err := secondCable(ctx, n, o); err != nil {
		return err
	}
	start := func(h netns.Host, out bool, role ...string) (*process.Process, error) {
		return process.Start(ctx, process.Program{Args: append(append(append(h.Run(), self, "links"), args...), role...), In: true, Out: out, Stderr: os.Stderr})
	}
	server, err := start(n.Hosts[1], false, "-serve")
	if err != nil {
		return err
	}
	defer server.Kill()
	if err := server.Await(ctx, "ready"); err != nil {
		return server.Explain(err)
	}
	client, err := start(n.Hosts[0], true, "-dial", n.Hosts[1].V4.String()+port)
	if err != nil {
		return err
	}
	defer client.Kill()
	for lines := bufio.NewScanner(client.Out); lines.Scan(); {
		if lines.Text() != cut {
			fmt.Println(lines.Text())
		} else if _, err := n.Hosts[1].Command(ctx, "ip", "link", "set", secondLink, "down"); err != nil {
			return err
		}
	}
	if err := client.Wait(); err != nil {
		return client.Explain(err)
	}
	if err := server.Await(ctx, right); err != nil {
		return server.Explain(err)
	}
	fmt.Println(right)
	return server.Close()
}

// secondLink is the interface at the second cable.
const secondLink = "e1"

// secondCable joins the hosts by another cable, and limits the rate of both.
func secondCable(ctx context.Context, n *netns.Network, o options) error {
	_, err := n.Hosts[0].Command(ctx, strings.Fields(fmt.Sprintf("ip link add %[1]s mtu %[2]d type veth peer name %[1]s mtu %[2]d netns %[3]s", secondLink, o.mtu, n.Hosts[1]))...)
	for i := 0; i < 2 && err == nil; i++ {
		_, err = n.Hosts[i].Command(ctx, "sh", "-ec", fmt.Sprintf(`ip link set %[1]s addrgenmode none; ip addr add 10.12.0.%[2]d/24 dev %[1]s; ip link set %[1]s up
			for l in %[1]s %[3]s; do tc qdisc add dev $l root tbf rate %[4]dmbit burst 256kb latency 20ms; done`, secondLink, i+1, netns.Link, o.rate))
	}
	if err == nil {
		_, err = n.Hosts[0].Command(ctx, "sh", "-c", "until ip -o link show "+secondLink+" | grep -q 'state UP'; do sleep 0.01; done")
	}
	return err
}
