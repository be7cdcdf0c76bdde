package peers

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/result"
)

// installed is what was found on the machine. The path of a program that was not found is
// empty.
type installed struct {
	ucx, pingPong, rma string
	perftest           string // folder
	device             string // the first RDMA device of the kernel; empty: there is none
	versions           map[string]string
	missing            []result.Missing
}

// devices is where the kernel lists its RDMA devices.
const devices = "/sys/class/infiniband"

func findInstalled(ctx context.Context) *installed {
	inv := &installed{versions: map[string]string{}}
	find := func(program, what, why string) string {
		path, err := exec.LookPath(program)
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err != nil {
			inv.missing = append(inv.missing, result.Missing{What: what, Reason: "there is no " + program + "; " + why})
			return ""
		}
		return path
	}
	inv.ucx = find("ucx_perftest", "UCX", "install the Debian package ucx-utils")
	inv.pingPong = find("fi_pingpong", "libfabric", "install the Debian package libfabric-bin")
	inv.rma = find("fi_rma_bw", "writes and reads of libfabric", "it is one of libfabric's fabtests, which are not in Debian")
	if list, err := os.ReadDir(devices); err == nil && len(list) > 0 {
		inv.device = list[0].Name()
	}
	if program := find("ib_write_bw", "perftest", "install the Debian package perftest"); program != "" {
		inv.perftest = filepath.Dir(program)
	}
	if inv.ucx != "" {
		inv.versions["UCX"] = versionOf(ctx, "ucx_info", "-v")
	}
	if inv.pingPong != "" || inv.rma != "" {
		inv.versions["libfabric"] = versionOf(ctx, "fi_info", "--version")
	}
	if inv.perftest != "" {
		inv.versions["perftest"] = versionOf(ctx, inv.perftest+"/ib_write_bw", "--version")
	}
	return inv
}

// versionOf returns the last word of the first line that a program prints, which is the
// version in all programs here.
func versionOf(ctx context.Context, args ...string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = time.Second
	out, _ := cmd.Output()
	first, _, _ := strings.Cut(string(out), "\n")
	words := strings.Fields(first)
	if len(words) == 0 {
		return ""
	}
	return words[len(words)-1]
}

// programs returns the programs that take part.
func (inv *installed) programs(verbena string) []result.Program {
	list := []result.Program{{Name: "Verbena", Version: verbena}}
	for _, name := range []string{"UCX", "libfabric", "perftest"} {
		if v, ok := inv.versions[name]; ok {
			list = append(list, result.Program{Name: name, Version: v})
		}
	}
	return list
}
