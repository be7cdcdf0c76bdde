// Package samples tests the sample programs as separate processes.
package samples

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
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
	if err = buildPrograms(bin, "../test/workload"); err != nil {
		return 0, err
	}
	if code = m.Run(); code == 0 {
		err = goleak.Find()
	}
	return code, err
}

// buildPrograms builds the samples, and others. Debugging information would take half of the
// linker's time.
func buildPrograms(folder string, args ...string) error {
	args = append([]string{"build", "-ldflags", "-s -w", "-o", folder + string(filepath.Separator)}, append(args, "./...")...)
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// withRaceDetector is the folder of the samples with the race detector, which slows programs down:
// each sample runs once with it, in the tests that call this. Short: without it.
func withRaceDetector(t *testing.T) string {
	t.Helper()
	if !raceDetector || testing.Short() || os.Getenv("VERBENA_GUEST") != "" {
		return bin
	}
	require.NoError(t, buildRaced())
	return racedBin()
}

func racedBin() string { return filepath.Join(bin, "race") }

var buildRaced = sync.OnceValue(func() error { return buildPrograms(racedBin(), "-race") })
