//go:build linux && cgo && verbs

package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/test/netns"
)

// built is the folder of the libraries, for all tests.
var built struct {
	sync.Once
	folder string
	output []byte
	err    error
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(built.folder)
		os.Exit(code)
	}))
}

// library builds libverbena.so and libverbena-device.so, and returns their folder.
func library(t testing.TB) string {
	t.Helper()
	built.Do(func() {
		if built.folder, built.err = os.MkdirTemp("", "libverbena"); built.err == nil {
			built.output, built.err = build(built.folder)
		}
	})
	require.NoError(t, built.err, "%s", built.output)
	return built.folder
}

func build(folder string, flags ...string) ([]byte, error) {
	script, err := filepath.Abs("../../../scripts/library.sh")
	if err != nil {
		return nil, err
	}
	return exec.Command(script, append([]string{folder}, flags...)...).CombinedOutput()
}

// environment is that of a program with the library. Values of more replace others.
func environment(t testing.TB, more ...string) []string {
	t.Helper()
	env := append(os.Environ(), "LD_PRELOAD="+filepath.Join(library(t), "libverbena.so"), "VERBENA_LOG=info")
	return append(env, more...)
}

// needProgram skips the test where a program is missing.
func needProgram(t testing.TB, name, debianPackage string) {
	t.Helper()
	_, err := exec.LookPath(name)
	netns.Need(t, err, "the test needs "+name+" (Debian package "+debianPackage+")")
}

// lastLines are the last lines of a program's output, for messages.
func lastLines(output string, n int) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
