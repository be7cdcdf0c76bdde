// Package veth makes two network namespaces with a pair of veth interfaces between them: two hosts
// with a cable, for benchmarks. It needs Linux, root, and iproute2.
package veth

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// Link is two network namespaces and the connection between them.
type Link struct {
	names   [2]string
	mtu     int
	limited bool
}

// Addresses are those of the two hosts.
var Addresses = [2]string{"10.78.0.1", "10.78.0.2"}

const (
	cable     = "veth0"
	etherSize = 14 // bytes of an Ethernet header, which the limit counts
	// burst is how many bytes may leave at once, which compensates for late timers.
	burst = 16 << 10
)

// New makes a link without a limit.
func New(mtu int) (l *Link, err error) {
	l = &Link{mtu: mtu}
	for i := range l.names {
		l.names[i] = fmt.Sprintf("verbena-bench-%d-%d", os.Getpid(), i)
	}
	defer func() {
		if err != nil {
			_ = l.Close()
		}
	}()
	for _, name := range l.names {
		if _, err := command("ip", "netns add "+name); err != nil {
			return nil, err
		}
	}
	steps := []string{
		fmt.Sprintf("-n %s link add %s mtu %d type veth peer name %s mtu %d netns %s", l.names[0], cable, mtu, cable, mtu, l.names[1]),
	}
	for i, address := range Addresses {
		steps = append(steps,
			fmt.Sprintf("-n %s addr add %s/24 dev %s", l.names[i], address, cable),
			fmt.Sprintf("-n %s link set %s up", l.names[i], cable))
	}
	for _, s := range steps {
		if _, err := command("ip", s); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Limit makes the first host send at most rate megabits a second. A queue holds so many packets of
// full size, and drops more.
func (l *Link) Limit(rate, queue int) error {
	l.limited = true
	_, err := command("tc", fmt.Sprintf("-n %s qdisc add dev %s root tbf rate %dmbit burst %d limit %d",
		l.names[0], cable, rate, max(burst, 2*(l.mtu+etherSize)), queue*(l.mtu+etherSize)))
	return err
}

// Run returns the beginning of a command line that runs on one of the hosts.
func (l *Link) Run(host int) []string { return []string{"ip", "netns", "exec", l.names[host]} }

// Dropped returns how many packets, or trains of packets, the queue has dropped for lack of room.
func (l *Link) Dropped() (int, error) {
	if !l.limited {
		return 0, nil
	}
	out, err := command("tc", fmt.Sprintf("-n %s -s qdisc show dev %s", l.names[0], cable))
	if err != nil {
		return 0, err
	}
	words := strings.FieldsFunc(out, func(r rune) bool { return strings.ContainsRune(" (),\n", r) })
	for i, w := range words[:max(len(words)-1, 0)] {
		if w == "dropped" {
			return strconv.Atoi(words[i+1])
		}
	}
	return 0, fmt.Errorf("the output of tc does not show the number of dropped packets: %q", out)
}

// Close deletes the namespaces and their interfaces.
func (l *Link) Close() (err error) {
	for _, name := range l.names {
		if _, e := command("ip", "netns del "+name); err == nil {
			err = e
		}
	}
	return err
}

func command(name, args string) (string, error) {
	out, err := exec.Command(name, strings.Fields(args)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s(it needs Linux, root, and iproute2)", name, args, err, out)
	}
	return string(out), nil
}
