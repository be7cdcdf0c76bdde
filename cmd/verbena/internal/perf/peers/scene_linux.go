package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/figure"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/hosts"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/result"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/tool"
	"github.com/verbena-rdma/verbena/verbs"
)

// scene is a place where tools measure, and what they have measured there.
type scene struct {
	result.Scene
	hosts  [2]hosts.Host
	remove func() error // removes what was made for the scene
	tools  []tool.Tool
	cells  []*cell
}

// newScenes sets up the scenes. The caller must remove the scenes that it returns, even with an
// error.
func (m *measurer) newScenes(ctx context.Context, self string, inv *installed) (list []*scene, err error) {
	for _, name := range m.o.scenes {
		s := &scene{Scene: result.Scene{Name: name}, hosts: hosts.Local()}
		list = append(list, s)
		switch name {
		case "local":
			s.Title = "Two processes of this machine"
			m.local(s, self, inv)
		case "adapter":
			s.Title = "Two processes of this machine, by an RDMA device of the kernel"
			m.adapter(s, self, inv)
		case "library":
			s.Title = "Two processes of this machine, perftest with libverbena.so"
			m.library(ctx, s, self, inv)
		case "veth1500":
			err = m.namespaces(ctx, s, 1500, self, inv)
		case "veth9000":
			err = m.namespaces(ctx, s, 9000, self, inv)
		}
		if err != nil {
			return list, err
		}
		for _, t := range s.tools {
			s.Contenders = append(s.Contenders, t.Name())
		}
	}
	return list, nil
}

func (m *measurer) verbena(self, title, device string, way verbs.Path) tool.Tool {
	return tool.Verbena{Path: self, Title: title, Device: device, Way: way, OnReport: m.warnings.add}
}

// add adds the tools whose programs were found.
func (s *scene) add(list ...tool.Tool) {
	for _, t := range list {
		if t.Program() != "" {
			s.tools = append(s.tools, t)
		}
	}
}

// compare adds the ratios of one tool of Verbena to those of the others that take part.
func (s *scene) compare(ours, title string, theirs ...tool.Tool) {
	for _, t := range theirs {
		if t.Program() != "" {
			s.Ratios = append(s.Ratios, result.Ratio{Ours: ours, Theirs: t.Name(), Title: title + " : " + t.Name()})
		}
	}
}

func (m *measurer) local(s *scene, self string, inv *installed) {
	const memory, udp = "Verbena, shared memory", "Verbena, UDP"
	posix, tcp := tool.UCX{Path: inv.ucx, Transports: "posix,cma"}, tool.UCX{Path: inv.ucx, Transports: "tcp"}
	pingPong, rma := tool.PingPong{Path: inv.pingPong}, tool.RMA{Path: inv.rma}
	s.add(m.verbena(self, memory, "soft-lo", verbs.PathSharedMemory), m.verbena(self, udp, "soft-lo?local=off", verbs.PathNetwork), posix, tcp, pingPong, rma)
	s.compare(memory, "shared memory", posix, pingPong)
	s.compare(udp, "UDP", tcp, pingPong, rma)
}

func (m *measurer) adapter(s *scene, self string, inv *installed) {
	if inv.device == "" {
		s.Skipped = "the kernel has no RDMA device in " + devices
		return
	}
	const own = "Verbena"
	perftest := tool.Perftest{Folder: inv.perftest, Device: inv.device}
	s.Title += ", " + inv.device
	s.add(m.verbena(self, own, inv.device, verbs.PathUnknown))
	if inv.perftest != "" {
		s.add(perftest)
		s.compare(own, own, perftest)
	}
}

// library compares programs of libibverbs, which verbena run starts, with the SDK on the same
// device and the same path.
func (m *measurer) library(ctx context.Context, s *scene, self string, inv *installed) {
	if inv.perftest == "" {
		s.Skipped = "there is no perftest"
		return
	}
	if out, err := exec.CommandContext(ctx, self, "run", "true").CombinedOutput(); err != nil {
		s.Skipped = strings.TrimSpace(string(out))
		return
	}
	for _, way := range []struct {
		name, device string
		path         verbs.Path
	}{{"shared memory", "soft-lo", verbs.PathSharedMemory}, {"UDP", "soft-lo?local=off", verbs.PathNetwork}} {
		own := "Verbena, " + way.name
		perftest := tool.Perftest{
			Folder: inv.perftest, Device: "soft_lo", Title: "perftest, " + way.name, Under: []string{self, "run", "-d", way.device, "--"},
		}
		s.add(m.verbena(self, own, way.device, way.path), perftest)
		s.compare(own, own, perftest)
	}
}

func (m *measurer) namespaces(ctx context.Context, s *scene, mtu int, self string, inv *installed) error {
	s.Title = fmt.Sprintf("Two network namespaces with a cable between them, MTU %d", mtu)
	c, err := hosts.NewNamespacePair(ctx, mtu)
	if errors.Is(err, hosts.ErrUnavailable) {
		s.Skipped = err.Error()
		return nil
	}
	if err != nil {
		return err
	}
	const udp = "Verbena, UDP"
	tcp, pingPong, rma := tool.UCX{Path: inv.ucx, Transports: "tcp"}, tool.PingPong{Path: inv.pingPong}, tool.RMA{Path: inv.rma}
	s.hosts, s.remove = c.Hosts, c.Remove
	s.add(m.verbena(self, udp, "soft-"+c.Hosts[0].Link, verbs.PathNetwork), tcp, pingPong, rma)
	s.compare(udp, "UDP", tcp, pingPong, rma)
	return nil
}

// firstPort is the first port for servers in namespaces, where no other program has ports.
const firstPort = 20000

// port finds a port for a server.
func (m *measurer) port(s *scene) (int, error) {
	if s.remove != nil {
		m.ports++
		return firstPort + m.ports%10000, nil
	}
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// cell holds what one tool has measured of one figure.
type cell struct {
	figure              figure.Figure
	tool                tool.Tool
	count               int // operations of a measurement; zero: not known yet
	rounds              []*figure.Sample
	failure             error
	consecutiveFailures int // failures, one after the other
}

// cell returns the cell of a figure and a tool. It makes the cell if there is none.
func (s *scene) cell(f figure.Figure, t tool.Tool) *cell {
	for _, c := range s.cells {
		if c.figure == f && c.tool.Name() == t.Name() {
			return c
		}
	}
	c := &cell{figure: f, tool: t}
	s.cells = append(s.cells, c)
	return c
}

func (c *cell) add(s figure.Sample) {
	c.rounds = append(c.rounds, &s)
	c.consecutiveFailures = 0
}

// failed records a failure. It keeps the error of the first, which says most.
func (c *cell) failed(round int, err error) {
	c.rounds = append(c.rounds, nil)
	c.consecutiveFailures++
	if c.failure == nil {
		c.failure = fmt.Errorf("round %d: %w", round+1, err)
	}
}

var errGivenUp = errors.New("it failed repeatedly and was not tried again")

// givenUp reports whether a measurement has failed so often that another try would waste time.
func (c *cell) givenUp() bool { return c.consecutiveFailures >= 2 }

// cellsOf returns the cells with their first rounds.
func (s *scene) cellsOf(rounds int) (list []result.Cell) {
	for _, c := range s.cells {
		one := result.Cell{Figure: c.figure.String(), Contender: c.tool.Name(), Rounds: c.rounds[:min(rounds, len(c.rounds))]}
		if c.failure != nil {
			one.Failure = c.failure.Error()
		}
		list = append(list, one)
	}
	return list
}

// ownFailed reports whether Verbena has no value of a figure.
func (s *scene) ownFailed() bool {
	for _, c := range s.cells {
		_, own := c.tool.(tool.Verbena)
		if own && cmp.Or(c.rounds...) == nil {
			return true
		}
	}
	return false
}
