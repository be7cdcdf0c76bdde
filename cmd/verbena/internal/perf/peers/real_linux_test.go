package peers

import (
	"io"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/machine"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/figure"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/hosts"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/tool"
	"github.com/verbena-rdma/verbena/test/netns"
)

// The programs of others take the arguments, and print what is expected. Short: not all
// figures.
func TestRealPrograms(t *testing.T) {
	inv := findInstalled(t.Context())
	for _, tools := range []struct {
		program string
		tools   []tool.Tool
		debian  bool
	}{
		{"ucx_perftest", []tool.Tool{tool.UCX{Path: inv.ucx, Transports: "posix,cma"}, tool.UCX{Path: inv.ucx, Transports: "tcp"}}, true},
		{"fi_pingpong", []tool.Tool{tool.PingPong{Path: inv.pingPong}}, true},
		{"fi_rma_bw", []tool.Tool{tool.RMA{Path: inv.rma}}, false},
	} {
		t.Run(tools.program, func(t *testing.T) {
			if tools.tools[0].Program() == "" {
				for _, m := range inv.missing {
					t.Logf("%s: %s", m.What, m.Reason)
				}
				if tools.debian {
					netns.Need(t, exec.ErrNotFound, "the test needs "+tools.program)
				}
				t.Skip("skipped: the test needs " + tools.program)
			}
			m := &measurer{o: &options{time: 20 * time.Millisecond, limit: 5 * time.Minute}, log: io.Discard, warnings: newMachineWarnings(machine.Machine{})}
			s := &scene{hosts: hosts.Local()}
			for _, one := range tools.tools {
				for _, f := range figure.All() {
					if !one.Measures(f) || testing.Short() && f.Size > 64<<10 {
						continue
					}
					// On a busy machine, programs that poll wait for each other's time slices. A
					// batch alone takes UCX no time that it can measure.
					count := tool.Batch
					if f.Kind == figure.Rate {
						count = one.FirstCount(f)
					}
					sample, err := m.run(t.Context(), s, &cell{figure: f, tool: one}, count)
					if assert.NoError(t, err, "%s %v", one.Name(), f) {
						assert.Positive(t, sample.Mean)
					}
				}
			}
		})
	}
}
