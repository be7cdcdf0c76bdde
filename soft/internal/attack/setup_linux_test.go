package attack

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/test/netns"
	"github.com/verbena-rdma/verbena/verbs"
)

// connectBy says how the victims are connected.
type connectBy int

const (
	byDescriptor connectBy = iota // exchanged by the test
	byAddress                     // by the connection manager
	byMemory                      // by descriptors, and the packets go through shared memory
	byUD
	bySRD
	byHalfMemory // by descriptors, and only the right devices have shared memory
)

func (h connectBy) datagrams() bool { return h == byUD || h == bySRD }

func (h connectBy) transport() verbs.QPType {
	switch h {
	case byUD:
		return verbs.UD
	case bySRD:
		return verbs.SRD
	}
	return verbs.RC
}

const defaultQKey = rdma.DefaultQKey

// topology says where victims and attacker are.
type topology int

const (
	oneHost  topology = iota // on the loopback interface
	oneHost6                 // the same with IPv6, in a namespace
	hosts                    // in three namespaces on one network
	// On the loopback interface, which containers of a pod share:
	containers // each in a PID namespace of its own
	container  // the attacker in a PID namespace below that of the victims
	unmapped   // the victims in user namespaces that map no user
)

var topologies = [...]string{oneHost: "one host", oneHost6: "one host by IPv6", hosts: "three hosts", containers: "containers", container: "a container", unmapped: "unmapped users"}

// scenario is the setup that an attack needs.
type scenario struct {
	connectBy connectBy
	topology  topology
}

// setup is a scenario with its victims.
type setup struct {
	scenario
	t       *testing.T
	page    *os.File
	victims [2]*process // left and right
	ends    []endInfo
	prefix  [3][]string // of the commands of left, right and the attacker
	own     []netip.Addr
	addrs   [2][]netip.AddrPort
	harmed  bool // the victims must be restarted

	namespaces []netns.Namespace
}

func newSetup(t *testing.T, at scenario) *setup {
	t.Helper()
	s := &setup{scenario: at, t: t}
	var err error
	s.page, err = os.Create(filepath.Join(t.TempDir(), "page"))
	require.NoError(t, err)
	require.NoError(t, s.page.Truncate(pageBytes))
	s.build()
	t.Cleanup(func() {
		s.stopVictims()
		_ = s.page.Close()
	})
	return s
}

// pin gives the attacker a processor of its own, and the victims the others. Otherwise
// the attacker would slow the victims down like any busy process.
func (s *setup) pin() {
	var all unix.CPUSet
	require.NoError(s.t, unix.SchedGetaffinity(0, &all))
	var list []string
	for cpu := range 8 * int(unsafe.Sizeof(all)) {
		if all.IsSet(cpu) {
			list = append(list, strconv.Itoa(cpu))
		}
	}
	if len(list) < 2 {
		return
	}
	for i := range s.prefix {
		processors := strings.Join(list[1:], ",")
		if i == len(s.victims) {
			processors = list[0]
		}
		s.prefix[i] = append(slices.Clip(s.prefix[i]), "taskset", "-c", processors)
	}
}

// prepare starts and connects the victims. It keeps those of the case before if they are unharmed.
func (s *setup) prepare(t *testing.T, r *attackCase) {
	t.Helper()
	s.t = t
	if s.victims[0] != nil && !s.harmed {
		s.victims[0].t, s.victims[1].t = t, t
		return
	}
	s.stopVictims()
	s.harmed = false
	for _, n := range s.namespaces {
		n.IP(t, "route flush cache") // entries from forged ICMP errors
	}
	s.startVictims(r)
}

// build makes the network namespaces.
func (s *setup) build() {
	addr := func(format string, n int) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf(format, n)), 4791)
	}
	switch s.topology {
	case oneHost, containers, container, unmapped:
		s.own = []netip.Addr{netip.MustParseAddr("127.1.2.3")}
		s.contain()
		if os.Getuid() == 0 { // so that scenarios can run side by side
			n := netns.New(s.t)
			for i, prefix := range s.prefix {
				s.prefix[i] = append(n.Run(), prefix...)
			}
		}
	case oneHost6:
		n := netns.New(s.t)
		for i := range 5 {
			n.IP(s.t, "addr add fd00::%d/128 dev lo nodad", i+1)
		}
		for i := range s.prefix {
			s.prefix[i] = n.Run()
		}
		s.addrs = [2][]netip.AddrPort{{addr("fd00::%d", 1), addr("fd00::%d", 2)}, {addr("fd00::%d", 3), addr("fd00::%d", 4)}}
		s.own = []netip.Addr{netip.MustParseAddr("fd00::5")}
	case hosts:
		for i, h := range netns.Hosts(s.t, 3, 1500) { // left, right, attacker
			s.prefix[i], s.namespaces = h.Run(), append(s.namespaces, h.Namespace)
			if i == len(s.victims) {
				s.own = []netip.Addr{h.V4}
				break
			}
			second := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 11, 0, byte(11 + i)}), 4791)
			h.IP(s.t, "addr add %s/24 dev %s", second.Addr(), netns.Link)
			s.addrs[i] = []netip.AddrPort{netip.AddrPortFrom(h.V4, 4791), second}
		}
	}
}

// contain puts the processes into namespaces, like containers that share a network.
func (s *setup) contain() {
	pid := []string{"unshare", "--pid", "--fork", "--kill-child"}
	if os.Getuid() != 0 {
		pid = append(pid, "--user", "--map-root-user")
	}
	user := []string{"unshare", "--user"}
	switch s.topology {
	case containers:
		s.prefix = [3][]string{pid, pid, pid}
	case container:
		s.prefix[2] = pid
	case unmapped:
		s.prefix[0], s.prefix[1] = user, user
	}
	for _, prefix := range s.prefix {
		if prefix != nil {
			netns.Need(s.t, exec.Command(prefix[0], append(prefix[1:], "true")...).Run(), "the test needs to create namespaces with unshare(1)")
		}
	}
}

// startVictims starts the victims, and connects them.
func (s *setup) startVictims(r *attackCase) {
	s.t.Helper()
	_, err := s.page.WriteAt(make([]byte, pageBytes), 0)
	require.NoError(s.t, err)
	s.ends = nil
	secret := make([]byte, 16)
	_, _ = rand.Read(secret)
	for i := range s.victims {
		s.victims[i] = start(s.t, "victim", s.prefix[i], s.page)
		answer := s.victims[i].ask(message{Kind: "begin", Attack: r.name, Side: i, Addresses: s.addrs[i], Data: [][]byte{secret, secret}})
		s.ends = append(s.ends, answer.Ends...)
	}
	for i, v := range s.victims {
		other := 2 * (1 - i)
		require.NoError(s.t, v.send(message{Kind: "connect", Ends: s.ends[other : other+2]}))
	}
	for _, v := range s.victims {
		require.Empty(s.t, v.answer("connect").Text)
	}
	for i := range s.victims { // the right victim first, which listens
		s.victims[1-i].ask(message{Kind: "work"})
	}
}

// report returns the operations and counters of the victims.
func (s *setup) report() (ops [2]int64, counters map[string]uint64) {
	counters = map[string]uint64{}
	for _, v := range s.victims {
		if len(v.deathReason()) > 0 {
			continue
		}
		m := v.ask(message{Kind: "report"})
		for i := range ops {
			ops[i] += m.Ops[i]
		}
		for name, value := range m.Counters {
			counters[name] += value
		}
	}
	return ops, counters
}

// deathReason says why a process has ended; empty: it has not.
func (p *process) deathReason() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.harms[died]
}

// result is the outcome of an attack.
type result struct {
	achieved map[harm]string
	sent     int64
	seconds  float64
	before   float64 // exchanges per second of the busy connection
	// besideDecoys is the same while the attacker sends to decoys; zero: not measured. It shows
	// how much any process as busy as the attacker would slow the victims down.
	besideDecoys float64
	during       float64
	counters     map[string]uint64 // growth during the attack
}

func (r *result) rate() float64 { return float64(r.sent) / max(r.seconds, 1e-9) }

func (s *setup) achieved(a *process) map[harm]string {
	all := map[harm]string{}
	for _, p := range append(s.victims[:], a) {
		p.collect(all)
	}
	return all
}

// counterTimeout is how long to wait for a counter to grow.
const counterTimeout = time.Minute

// attack runs the attacker of a case for a while.
func (s *setup) attack(r *attackCase, duration time.Duration, short bool) (res result) {
	t := s.t
	s.harmed = true // until it is known that they are not
	quiet := min(duration/4, 30*time.Second)
	res.before = s.busyRate(func() { time.Sleep(quiet) })
	if r.forges != nil && r.from != bySpoofing {
		res.besideDecoys = s.sendToDecoys(r, quiet)
	}
	ops, counters := s.report()

	a := start(t, "attacker", s.prefix[2], s.page)
	require.Empty(t, s.achieved(a), "before the attack")
	defer a.end()
	require.NoError(t, a.send(message{Kind: "begin", Attack: r.name, Ends: s.ends, Own: s.own, Short: short}))
	a.answer("began")
	began := time.Now()
	done, ok := message{}, false
	for !ok {
		achieved := s.achieved(a)
		over := time.Since(began) > duration
		if over && len(achieved) == 0 && !r.countersGrew(s.grown(counters)) {
			over = time.Since(began) > duration+counterTimeout
		}
		if len(achieved) > 0 {
			over = true
		} else if r.once {
			over = false
		}
		if over {
			break
		}
		select {
		case m, alive := <-a.answers:
			require.True(t, alive, "the attacker has ended")
			if ok = m.Kind == "done"; ok {
				done = m
				break
			}
			s.forward(a, m)
		case <-time.After(10 * time.Millisecond):
		}
	}
	ops2, _ := s.report()
	elapsed := time.Since(began).Seconds()
	_ = a.send(message{Kind: "stop"})
	for !ok {
		m := <-a.answers
		require.NotEmpty(t, m.Kind, "the attacker has ended")
		done, ok = m, m.Kind == "done"
	}
	require.Empty(t, done.Text, "the attacker")
	res.sent, res.seconds = done.Sent, done.Seconds
	res.during = float64(ops2[busy]-ops[busy]) / elapsed
	if len(s.achieved(a)) == 0 {
		s.check(short)
	}
	res.counters = s.grown(counters)
	res.achieved = s.achieved(a)
	s.harmed = len(res.achieved) > 0
	return res
}

// busyRate returns the exchanges per second of the busy connection while meanwhile runs.
func (s *setup) busyRate(meanwhile func()) float64 {
	first, _ := s.report()
	began := time.Now()
	meanwhile()
	last, _ := s.report()
	return float64(last[busy]-first[busy]) / time.Since(began).Seconds()
}

// sendToDecoys lets the attacker send the case's packets to decoys for a while. It returns the rate
// of the busy connection, or zero if the attacker can send none.
func (s *setup) sendToDecoys(r *attackCase, duration time.Duration) (pace float64) {
	a := start(s.t, "attacker", s.prefix[2], s.page)
	defer a.end()
	require.NoError(s.t, a.send(message{Kind: "begin", Attack: r.name, Ends: s.ends, Own: s.own, Decoys: true}))
	a.answer("began")
	pace = s.busyRate(func() { time.Sleep(duration) })
	_ = a.send(message{Kind: "stop"})
	done := a.answer("done")
	require.Empty(s.t, done.Text, "the attacker")
	if done.Sent == 0 {
		return 0
	}
	return pace
}

// grown returns the growth of the counters.
func (s *setup) grown(since map[string]uint64) map[string]uint64 {
	_, now := s.report()
	for name := range now {
		now[name] -= since[name]
	}
	return now
}

// forward passes a request of the attacker to the right victim, or to the left one if it is to dial,
// and returns the response.
func (s *setup) forward(a *process, m message) {
	v := s.victims[1]
	if m.Kind == "newcomer" || m.Kind == "lookup" {
		v, m.Ends = s.victims[0], s.ends[2:]
	}
	if v.deathReason() != "" {
		return
	}
	_ = a.send(v.ask(m))
}

// check checks that the connections still work.
func (s *setup) check(short bool) {
	left, right := s.victims[0], s.victims[1]
	if !s.connectBy.datagrams() {
		if m := left.ask(message{Kind: "probe"}); m.Text != "" {
			left.harm(ended, "the idle connection no longer works: "+m.Text)
			return
		}
	}
	if s.connectBy == byAddress && !short {
		began := time.Now()
		if m := left.ask(message{Kind: "dial", Ends: s.ends[2:]}); m.Text != "" {
			left.harm(refused, "a newcomer is not served: "+m.Text)
			return
		}
		s.t.Logf("a newcomer was served after %.1f s", time.Since(began).Seconds())
	}
	before := left.ask(message{Kind: "report"}).Ops[busy]
	for limit := time.Now().Add(hangTimeout / 2); left.ask(message{Kind: "report"}).Ops[busy] < before+2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) || len(s.achieved(right)) > 0 {
			left.harm(ended, "the busy connection makes no progress")
			return
		}
	}
}

func (p *process) harm(h harm, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.harms[h] = text
}

// stopVictims stops the victims.
func (s *setup) stopVictims() {
	for i, v := range s.victims {
		if v != nil {
			v.end()
			s.victims[i] = nil
		}
	}
}

func (res *result) describe() string {
	var parts []string
	for h, text := range res.achieved {
		parts = append(parts, fmt.Sprintf("%s (%s)", h, text))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, "; ")
}
