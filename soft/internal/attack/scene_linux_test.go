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

// how says how victims are connected.
type how int

const (
	byDescriptor how = iota // exchanged by the test
	byAddress               // by the connection manager
	byMemory                // by descriptors, and the packets go through shared memory
	byUD
	bySRD
	byHalfMemory // by descriptors, and only the right devices have shared memory
)

func (h how) datagrams() bool { return h == byUD || h == bySRD }

func (h how) transport() verbs.QPType {
	switch h {
	case byUD:
		return verbs.UD
	case bySRD:
		return verbs.SRD
	}
	return verbs.RC
}

const defaultQKey = rdma.DefaultQKey

// place is where victims and attacker are.
type place int

const (
	oneHost  place = iota // on the loopback interface
	oneHost6              // likewise with IPv6, in a namespace
	hosts                 // in three namespaces on one network
	// On the loopback interface, too, which containers of a pod share:
	containers // each in a PID namespace of its own
	container  // the attacker in a PID namespace below that of the victims
	unmapped   // the victims in user namespaces that map no user
)

// scene is what an attack needs.
type scene struct {
	how   how
	place place
}

// stage is a scene with its victims.
type stage struct {
	scene
	t       *testing.T
	page    *os.File
	victims [2]*process // left and right
	ends    []endInfo
	prefix  [3][]string // of the commands of left, right and the attacker
	own     []netip.Addr
	addrs   [2][]netip.AddrPort
	harmed  bool // they have to be made anew

	namespaces []netns.Namespace
}

func newStage(t *testing.T, at place) *stage {
	t.Helper()
	s := &stage{scene: scene{place: at}, t: t}
	var err error
	s.page, err = os.Create(filepath.Join(t.TempDir(), "page"))
	require.NoError(t, err)
	require.NoError(t, s.page.Truncate(pageBytes))
	s.build()
	t.Cleanup(func() {
		s.lower()
		_ = s.page.Close()
	})
	return s
}

// pin gives the attacker a processor of its own, and the victims the others: beside any process that
// is as busy they would lose to it what the scheduler gives it.
func (s *stage) pin() {
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

// prepare has victims connected as a row needs them, those of the row before where they are
// unharmed.
func (s *stage) prepare(t *testing.T, r *row) {
	t.Helper()
	s.t = t
	if s.victims[0] != nil && s.how == r.how && !s.harmed {
		s.victims[0].t, s.victims[1].t = t, t
		return
	}
	s.lower()
	s.how, s.harmed = r.how, false
	for _, n := range s.namespaces {
		n.IP(t, "route flush cache") // what forged ICMP errors have put there
	}
	s.raise(r)
}

// build makes the hosts.
func (s *stage) build() {
	addr := func(format string, n int) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf(format, n)), 4791)
	}
	switch s.place {
	case oneHost:
		s.own = []netip.Addr{netip.MustParseAddr("127.1.2.3")}
	case containers, container, unmapped:
		s.own = []netip.Addr{netip.MustParseAddr("127.1.2.3")}
		s.contain()
	case oneHost6:
		n := netns.New(s.t, "attack")
		n.IP(s.t, "link set lo up")
		for i := range 5 {
			n.IP(s.t, "addr add fd00::%d/128 dev lo nodad", i+1)
		}
		for i := range s.prefix {
			s.prefix[i] = n.Run()
		}
		s.addrs = [2][]netip.AddrPort{{addr("fd00::%d", 1), addr("fd00::%d", 2)}, {addr("fd00::%d", 3), addr("fd00::%d", 4)}}
		s.own = []netip.Addr{netip.MustParseAddr("fd00::5")}
	case hosts:
		bridge := netns.New(s.t, "attack-bridge")
		bridge.IP(s.t, "link add br0 type bridge")
		bridge.IP(s.t, "link set br0 up")
		for i, name := range []string{"left", "right", "attacker"} {
			n := netns.New(s.t, "attack-"+name)
			n.IP(s.t, "link add eth0 type veth peer name port%d netns %s", i, bridge)
			bridge.IP(s.t, "link set port%d master br0", i)
			bridge.IP(s.t, "link set port%d up", i)
			for k := range 2 {
				n.IP(s.t, "addr add 10.66.0.%d/24 dev eth0", 1+2*i+k)
			}
			n.IP(s.t, "link set lo up")
			n.IP(s.t, "link set eth0 up")
			s.prefix[i], s.namespaces = n.Run(), append(s.namespaces, n)
		}
		s.addrs = [2][]netip.AddrPort{{addr("10.66.0.%d", 1), addr("10.66.0.%d", 2)}, {addr("10.66.0.%d", 3), addr("10.66.0.%d", 4)}}
		s.own = []netip.Addr{netip.MustParseAddr("10.66.0.5")}
	}
}

// contain puts the processes into namespaces, as containers that have a network in common.
func (s *stage) contain() {
	pid := []string{"unshare", "--pid", "--fork", "--kill-child"}
	if os.Getuid() != 0 {
		pid = append(pid, "--user", "--map-root-user")
	}
	user := []string{"unshare", "--user"}
	switch s.place {
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

// raise starts the victims, and connects them.
func (s *stage) raise(r *row) {
	s.t.Helper()
	_, err := s.page.WriteAt(make([]byte, pageBytes), 0)
	require.NoError(s.t, err)
	s.ends = nil
	secret := make([]byte, 16)
	_, _ = rand.Read(secret)
	for i := range s.victims {
		s.victims[i] = start(s.t, "victim", s.prefix[i], s.page)
		answer := s.victims[i].ask(message{Kind: "begin", Row: r.name, Side: i, Addresses: s.addrs[i], Data: [][]byte{secret, secret}})
		s.ends = append(s.ends, answer.Ends...)
	}
	for i, v := range s.victims {
		other := 2 * (1 - i)
		require.NoError(s.t, v.say(message{Kind: "connect", Ends: s.ends[other : other+2]}))
	}
	for _, v := range s.victims {
		require.Empty(s.t, v.answer("connect").Text)
	}
	for i := range s.victims { // who listens first
		s.victims[1-i].ask(message{Kind: "work"})
	}
}

// report is what the victims say of themselves.
func (s *stage) report() (ops [2]int64, counters map[string]uint64) {
	counters = map[string]uint64{}
	for _, v := range s.victims {
		if len(v.broken()) > 0 {
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

// broken is what has been done to a process, if it no longer answers.
func (p *process) broken() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.harms[died]
}

// result is what came of an attack.
type result struct {
	achieved map[harm]string
	sent     int64
	seconds  float64
	before   float64 // exchanges a second of the busy connection
	// elsewhere is the same beside the attacker's packets to nobody; zero: that was not tried. It
	// shows what the victims lose to any process that is as busy.
	elsewhere float64
	during    float64
	counters  map[string]uint64 // how much they have grown
}

func (r *result) rate() float64 { return float64(r.sent) / max(r.seconds, 1e-9) }

func (s *stage) achieved(a *process) map[harm]string {
	all := map[harm]string{}
	for _, p := range append(s.victims[:], a) {
		p.collect(all)
	}
	return all
}

// noticePatience is how long to wait for the counters that are to notice.
const noticePatience = time.Minute

// attack has the attacker do the row's worst for a while.
func (s *stage) attack(r *row, duration time.Duration, moment bool) (res result) {
	t := s.t
	s.harmed = true // unless it is known better
	quiet := min(duration/4, 30*time.Second)
	res.before = s.pace(func() { time.Sleep(quiet) })
	if r.forges != nil && r.from != bySpoofing {
		res.elsewhere = s.sendElsewhere(r, quiet)
	}
	ops, counters := s.report()

	a := start(t, "attacker", s.prefix[2], s.page)
	require.Empty(t, s.achieved(a), "before the attack")
	defer a.end()
	require.NoError(t, a.say(message{Kind: "begin", Row: r.name, Ends: s.ends, Own: s.own, Moment: moment}))
	a.answer("began")
	began := time.Now()
	done, ok := message{}, false
	for !ok {
		achieved := s.achieved(a)
		over := time.Since(began) > duration
		if over && len(achieved) == 0 && !r.noticed(s.grown(counters)) {
			over = time.Since(began) > duration+noticePatience
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
			s.mediate(a, m)
		case <-time.After(10 * time.Millisecond):
		}
	}
	ops2, _ := s.report()
	elapsed := time.Since(began).Seconds()
	_ = a.say(message{Kind: "stop"})
	for !ok {
		m := <-a.answers
		require.NotEmpty(t, m.Kind, "the attacker has ended")
		done, ok = m, m.Kind == "done"
	}
	require.Empty(t, done.Text, "the attacker")
	res.sent, res.seconds = done.Sent, done.Seconds
	res.during = float64(ops2[busy]-ops[busy]) / elapsed
	if len(s.achieved(a)) == 0 {
		s.check(moment)
	}
	res.counters = s.grown(counters)
	res.achieved = s.achieved(a)
	s.harmed = len(res.achieved) > 0
	return res
}

// pace is how many exchanges a second the busy connection makes meanwhile.
func (s *stage) pace(meanwhile func()) float64 {
	first, _ := s.report()
	began := time.Now()
	meanwhile()
	last, _ := s.report()
	return float64(last[busy]-first[busy]) / time.Since(began).Seconds()
}

// sendElsewhere has the attacker send the row's packets to nobody for a while. It returns the pace
// of the busy connection, or zero if the attacker can send none.
func (s *stage) sendElsewhere(r *row, duration time.Duration) (pace float64) {
	a := start(s.t, "attacker", s.prefix[2], s.page)
	defer a.end()
	require.NoError(s.t, a.say(message{Kind: "begin", Row: r.name, Ends: s.ends, Own: s.own, Elsewhere: true}))
	a.answer("began")
	pace = s.pace(func() { time.Sleep(duration) })
	_ = a.say(message{Kind: "stop"})
	done := a.answer("done")
	require.Empty(s.t, done.Text, "the attacker")
	if done.Sent == 0 {
		return 0
	}
	return pace
}

// grown is how much the counters have grown.
func (s *stage) grown(since map[string]uint64) map[string]uint64 {
	_, now := s.report()
	for name := range now {
		now[name] -= since[name]
	}
	return now
}

// mediate has the right victim do what the attacker, as its peer, asks for.
func (s *stage) mediate(a *process, m message) {
	v := s.victims[1]
	if v.broken() != "" {
		return
	}
	_ = a.say(v.ask(m))
}

// check looks whether connections still do what they should.
func (s *stage) check(moment bool) {
	left, right := s.victims[0], s.victims[1]
	if !s.how.datagrams() {
		if m := left.ask(message{Kind: "probe"}); m.Text != "" {
			left.harm(ended, "the idle connection no longer works: "+m.Text)
			return
		}
	}
	if s.how == byAddress && !moment {
		began := time.Now()
		if m := left.ask(message{Kind: "dial", Ends: s.ends[2:]}); m.Text != "" {
			left.harm(refused, "a newcomer is not served: "+m.Text)
			return
		}
		s.t.Logf("a newcomer was served after %.1f s", time.Since(began).Seconds())
	}
	before := left.ask(message{Kind: "report"}).Ops[busy]
	for limit := time.Now().Add(patience / 2); left.ask(message{Kind: "report"}).Ops[busy] < before+2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) || len(s.achieved(right)) > 0 {
			left.harm(ended, "the busy connection stands still")
			return
		}
	}
}

func (p *process) harm(h harm, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.harms[h] = text
}

// lower ends the victims.
func (s *stage) lower() {
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
