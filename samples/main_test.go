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
	if err := goBuild("./...", "../test/workload"); err != nil {
		return 0, err
	}
	if code = m.Run(); code == 0 {
		err = goleak.Find()
	}
	return code, err
}

// raced are the programs that TestPairs also runs with the race detector, if the test has it: one row for
// each kind of context and way to wait. Under it programs are many times slower, and take longer to build.
var raced = []string{"rdma_send", "rdma_receive", "ud_send", "ud_receive", "rdma_sync_event_requester", "rdma_sync_event_responder"}

// raceBin is the folder in bin of the programs in raced.
const raceBin = "race"

// goBuild builds all programs, and those in raced with the race detector too.
func goBuild(packages ...string) error {
	if err := goBuildTo(bin, packages...); err != nil || !raceDetector {
		return err
	}
	// The programs would wait for a second at their end.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		return err
	}
	args := []string{"-race"}
	for _, name := range raced {
		args = append(args, "./"+name)
	}
	return goBuildTo(filepath.Join(bin, raceBin), args...)
}

func goBuildTo(folder string, args ...string) error {
	// Without debugging information, which takes half of the linker's time.
	args = append([]string{"build", "-ldflags", "-s -w", "-o", folder + string(filepath.Separator)}, args...)
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}
