package peers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/verbena-rdma/verbena/bench/internal/measure"
	"github.com/verbena-rdma/verbena/internal/process"
	"github.com/verbena-rdma/verbena/test/netns"
	"github.com/verbena-rdma/verbena/verbs"
)

// place is where the two ends run.
type place struct {
	address netip.Addr // of the server
	link    string     // the interface by which each end reaches the other
	prefix  [2][]string
}

// here is this machine.
var here = place{address: netip.AddrFrom4([4]byte{127, 0, 0, 1}), link: "lo"}

// sceneKind is a scene that can be chosen.
type sceneKind struct {
	name, about string
	mtu         int // of a cable between two network namespaces; zero: two processes of this machine
	build       func(m *measurer, ctx context.Context, s *scene) error
}

var scenes = []sceneKind{
	{"local", "two processes of this machine", 0, (*measurer).local},
	{"adapter", "two processes of this machine, by an RDMA device of the kernel", 0, (*measurer).adapter},
	{"library", "two processes of this machine, perftest with libverbena.so", 0, (*measurer).library},
	{"veth1500", "two network namespaces with a cable between them, MTU 1500", 1500, (*measurer).hosts},
	{"veth9000", "two network namespaces with a cable between them, MTU 9000", 9000, (*measurer).hosts},
	{"streams", "two processes of this machine, package rsocket and TCP", 0, (*measurer).streams},
	{"streams1500", "two network namespaces, package rsocket and TCP, MTU 1500", 1500, (*measurer).streams},
	{"files", "two processes of this machine, verbena send and scp", 0, (*measurer).files},
}

// scene is a scene that is built.
type scene struct {
	*measure.Scene
	m  *measurer
	at place
}

// scene builds a scene.
func (m *measurer) scene(ctx context.Context, name string) (*measure.Scene, error) {
	for _, k := range scenes {
		if k.name != name {
			continue
		}
		s := &scene{&measure.Scene{Title: k.about}, m, here}
		if k.mtu > 0 {
			n, err := netns.MakeNetwork(ctx, 2, k.mtu)
			if errors.Is(err, netns.ErrUnavailable) {
				s.Skipped = err.Error()
				return s.Scene, nil
			}
			if err != nil {
				return nil, err
			}
			m.closers = append(m.closers, func() error { n.Close(); return nil })
			s.at = place{n.Hosts[0].V4, netns.Link, [2][]string{n.Hosts[0].Run(), n.Hosts[1].Run()}}
		}
		return s.Scene, k.build(m, ctx, s)
	}
	return nil, fmt.Errorf("there is no scene %q", name)
}

// add adds a contender.
func (s *scene) add(name string, t tool, own bool) {
	c := measure.Contender{Name: name, Own: own}
	for _, f := range figures() {
		if t.measures(f) {
			c.Measurements = append(c.Measurements, s.m.measurement(t, f, s.at))
		}
	}
	s.Contenders = append(s.Contenders, c)
}

// compare compares a contender with another one, unless that takes no part.
func (s *scene) compare(ours, short, theirs string) {
	x := measure.Ratio{Of: -1, To: -1, Title: short + " : " + theirs}
	for i, c := range s.Contenders {
		switch c.Name {
		case ours:
			x.Of = i
		case theirs:
			x.To = i
		}
	}
	if x.Of >= 0 && x.To >= 0 {
		s.Ratios = append(s.Ratios, x)
	}
}

// Names of contenders.
const (
	byMemory, byUDP   = "Verbena, shared memory", "Verbena, UDP"
	ucxMemory, ucxTCP = "UCX posix,cma", "UCX tcp"
	fabric            = "libfabric tcp"
)

// others adds UCX and libfabric over TCP, and compares them with Verbena by UDP.
func (s *scene) others() {
	if s.m.ucx != "" {
		s.add(ucxTCP, ucx{path: s.m.ucx, transports: "tcp"}, false)
	}
	if s.m.pingPong != "" {
		s.add(fabric, pingPong{path: s.m.pingPong}, false)
	}
	for _, theirs := range []string{ucxTCP, fabric} {
		s.compare(byUDP, "UDP", theirs)
	}
}

func (m *measurer) local(_ context.Context, s *scene) error {
	s.add(byMemory, verbena{m.verbena, "soft-lo", verbs.PathSharedMemory}, true)
	s.add(byUDP, verbena{m.verbena, "soft-lo?local=off", verbs.PathNetwork}, true)
	if m.ucx != "" {
		s.add(ucxMemory, ucx{path: m.ucx, transports: "posix,cma"}, false)
	}
	s.others()
	s.compare(byMemory, "shared memory", ucxMemory)
	s.compare(byMemory, "shared memory", fabric)
	return nil
}

func (m *measurer) hosts(_ context.Context, s *scene) error {
	s.add(byUDP, verbena{m.verbena, "soft-" + s.at.link, verbs.PathNetwork}, true)
	s.others()
	return nil
}

func (m *measurer) adapter(_ context.Context, s *scene) error {
	if m.device == "" {
		s.Skipped = "the kernel has no RDMA device in " + devices
		return nil
	}
	s.Title += ", " + m.device
	s.add("Verbena", verbena{m.verbena, m.device, verbs.PathUnknown}, true)
	if m.perftest != "" {
		s.add("perftest", perftest{folder: m.perftest, device: m.device}, false)
		s.compare("Verbena", "Verbena", "perftest")
	}
	return nil
}

// library compares programs of libibverbs, which verbena run starts, with the SDK on the same
// device and the same path.
func (m *measurer) library(ctx context.Context, s *scene) error {
	if m.perftest == "" {
		s.Skipped = "there is no perftest"
		return nil
	}
	if _, err := process.Run(ctx, process.Program{Args: []string{m.verbena, "run", "true"}}); err != nil {
		s.Skipped = err.Error()
		return nil
	}
	for _, way := range []struct {
		name, device string
		path         verbs.Path
	}{{"shared memory", "soft-lo", verbs.PathSharedMemory}, {"UDP", "soft-lo?local=off", verbs.PathNetwork}} {
		ours, theirs := "Verbena, "+way.name, "perftest, "+way.name
		s.add(ours, verbena{m.verbena, way.device, way.path}, true)
		s.add(theirs, perftest{folder: m.perftest, device: "soft_lo", under: []string{m.verbena, "run", "-d", way.device, "--"}}, false)
		s.compare(ours, ours, theirs)
	}
	return nil
}

func (m *measurer) streams(_ context.Context, s *scene) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ways := []struct{ name, device string }{{"rsocket, shared memory", "soft-lo"}, {"rsocket, UDP", "soft-lo?local=off"}}
	if s.at.prefix[0] != nil {
		ways = ways[1:]
		ways[0].device = "soft-" + s.at.link
	}
	for _, w := range ways {
		s.add(w.name, streams{self, w.device}, true)
	}
	s.add("TCP", streams{self, ""}, false)
	for _, w := range ways {
		s.compare(w.name, w.name, "TCP")
	}
	return nil
}

func (m *measurer) files(ctx context.Context, s *scene) error {
	memory := ""
	if _, err := os.Stat("/dev/shm"); err == nil {
		memory = "/dev/shm"
	}
	folder, err := os.MkdirTemp(memory, "verbena-peers-")
	if err != nil {
		return err
	}
	m.closers = append(m.closers, func() error { return os.RemoveAll(folder) })
	p, err := newPayload(folder, m.mib<<20)
	if err != nil {
		return err
	}
	other, err := newSCP(ctx, p, filepath.Join(folder, "ssh"))
	if err != nil {
		return err
	}
	m.closers = append(m.closers, other.close)
	s.Title += fmt.Sprintf(", %d MiB", m.mib)
	s.add("verbena send", verbenaSend{p, m.verbena}, true)
	s.add("scp", other, false)
	s.compare("verbena send", "verbena send", "scp")
	return nil
}
