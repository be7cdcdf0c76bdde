//go:build linux

package test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := 1
	defer func() { os.Exit(code) }()
	var err error
	if folder, err = os.MkdirTemp("", "verbena-library-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer func() { _ = os.RemoveAll(folder) }()
	code = m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
}

// folder is for what is built, and is removed at the end.
var folder string

// variant is a way to build the library.
type variant struct {
	name  string
	flags []string // of scripts/library.sh
}

var (
	plain = variant{name: "plain"}
	// checked has the race detector in its Go half, and AddressSanitizer in its C half.
	checked = variant{name: "checked", flags: []string{"-race", "-fsanitize=address"}}
)

// builds are the libraries that were built, by the name of the variant.
var builds = map[string]func() (string, error){
	plain.name:   sync.OnceValues(plain.build),
	checked.name: sync.OnceValues(checked.build),
}

func (v variant) build() (string, error) {
	to := filepath.Join(folder, v.name)
	out, err := exec.Command("../../../scripts/library.sh", append([]string{to}, v.flags...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the library: %w\n%s", err, out)
	}
	return to, nil
}

// library builds the library, once, and returns its folder.
func (v variant) library(t *testing.T) string {
	t.Helper()
	for _, header := range []string{"infiniband/verbs.h", "rdma/rdma_cma.h"} {
		if _, err := os.Stat(filepath.Join("/usr/include", header)); err != nil {
			t.Skipf("the library cannot be built: %v; scripts/setup.sh installs what is needed", err)
		}
	}
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("the library cannot be built without a C compiler")
	}
	to, err := builds[v.name]()
	require.NoError(t, err)
	return to
}

// environment returns the environment that preloads the library.
func (v variant) environment(t *testing.T, more ...string) []string {
	t.Helper()
	preload := filepath.Join(v.library(t), "libverbena.so")
	env := append(os.Environ(), more...)
	if len(v.flags) > 0 {
		out, err := exec.Command("cc", "-print-file-name=libasan.so").Output()
		require.NoError(t, err)
		// AddressSanitizer must be first. It must leave addresses to the Go heap of the race
		// detector, which has fixed ones.
		preload = strings.TrimSpace(string(out)) + " " + preload
		env = append(env, "ASAN_OPTIONS=protect_shadow_gap=0:detect_leaks=0", "GORACE=halt_on_error=1")
	}
	return append(env, "LD_PRELOAD="+preload)
}

// timeLimit ends programs that hang.
const timeLimit = 5 * time.Minute

// run runs a program, and returns what it printed. A program that hangs is made to print the
// stacks of its goroutines first.
func run(t *testing.T, env []string, name string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &out, env
	cmd.WaitDelay = time.Second // for a child that has the same output
	require.NoError(t, cmd.Start())
	abort := time.AfterFunc(timeLimit, func() { _ = cmd.Process.Signal(syscall.SIGABRT) })
	kill := time.AfterFunc(timeLimit+10*time.Second, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	kill.Stop()
	if !abort.Stop() {
		err = fmt.Errorf("ended after %v: %w", timeLimit, err)
	}
	return out.String(), err
}
