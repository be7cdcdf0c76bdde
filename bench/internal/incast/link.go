package incast

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// link is two network namespaces and the connection between them.
type link struct {
	names   [2]string // of the senders and of the receiver
	limited bool
}

const (
	cable     = "veth0"
	sender    = "10.78.0.1"
	receiver  = "10.78.0.2"
	etherSize = 14 // bytes of an Ethernet header, which the limit counts
	// linkBurst is how many bytes may leave at once, which compensates for late timers.
	linkBurst = 16 << 10
)

func newLink(o options) (l *link, err error) {
	l = &link{limited: o.rate > 0}
	for i := range l.names {
		l.names[i] = fmt.Sprintf("verbena-incast-%d-%d", os.Getpid(), i)
	}
	defer func() {
		if err != nil {
			_ = l.close()
		}
	}()
	for _, name := range l.names {
		if _, err := command("ip", "netns add "+name); err != nil {
			return nil, err
		}
	}
	steps := []string{
		fmt.Sprintf("-n %s link add %s mtu %d type veth peer name %s mtu %d netns %s", l.names[0], cable, o.mtu, cable, o.mtu, l.names[1]),
	}
	for i, address := range []string{sender, receiver} {
		steps = append(steps,
			fmt.Sprintf("-n %s addr add %s/24 dev %s", l.names[i], address, cable),
			fmt.Sprintf("-n %s link set %s up", l.names[i], cable))
	}
	for _, s := range steps {
		if _, err := command("ip", s); err != nil {
			return nil, err
		}
	}
	if l.limited {
		_, err = command("tc", fmt.Sprintf("-n %s qdisc add dev %s root tbf rate %dmbit burst %d limit %d",
			l.names[0], cable, o.rate, max(linkBurst, 2*(o.mtu+etherSize)), o.queue*(o.mtu+etherSize)))
	}
	return l, err
}

// dropped returns how many packets, or trains of packets, the queue has dropped for lack of
// room.
func (l *link) dropped() (int, error) {
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

func (l *link) close() (err error) {
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
