// Package samples tests the sample programs as separate processes.
package samples

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/test/rig"
)

// bin is where TestMain has put the programs.
var bin string

func TestMain(m *testing.M) {
	code, err := build(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func build(m *testing.M) (code int, err error) {
	if os.Getenv("VERBENA_GUEST") != "" {
		bin = "/samples"
		if code = m.Run(); code == 0 {
			err = goleak.Find()
		}
		return code, err
	}
	if bin, err = os.MkdirTemp("", "verbena-samples-"); err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(bin) }()
	if err := rig.ReadSources(); err != nil {
		return 0, err
	}
	// Without debugging information, which takes half of the linker's time.
	args := []string{"build", "-ldflags", "-s -w", "-o", bin + string(filepath.Separator)}
	if raceDetector {
		args = append(args, "-race")
		// The programs would wait for a second at their end.
		if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
			return 0, err
		}
	}
	if out, err := exec.Command("go", append(args, "./...", "../test/workload")...).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("go build: %w\n%s", err, out)
	}
	if code = m.Run(); code == 0 {
		err = goleak.Find()
	}
	return code, err
}
