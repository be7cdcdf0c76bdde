//go:build linux

package test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/test/netns"
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
	env   []string // of scripts/library.sh
	race  bool     // programs are linked with the Go half, with the race detector
}

// sanitize makes the C half check its memory.
const sanitize = "-fsanitize=address"

var (
	plain     = variant{name: "plain"}
	sanitized = variant{name: "sanitized", flags: []string{sanitize}}
	// raced is sanitized too. The race detector needs the Go half's data at low addresses, where
	// shared libraries never are, so programs are linked with it.
	raced = variant{name: "raced", flags: []string{sanitize}, race: true}
	arm64 = variant{name: "arm64", env: []string{"GOARCH=arm64", "CC=aarch64-linux-gnu-gcc"}}
)

// builds are the libraries that were built, by the name of the variant.
var builds = map[string]func() (string, error){
	plain.name:     sync.OnceValues(plain.build),
	sanitized.name: sync.OnceValues(sanitized.build),
	raced.name:     sync.OnceValues(raced.build),
	arm64.name:     sync.OnceValues(arm64.build),
}

func (v variant) build() (string, error) {
	to := filepath.Join(folder, v.name)
	cmd := exec.Command("../../../scripts/library.sh", append([]string{to}, v.flags...)...)
	cmd.Env = append(os.Environ(), v.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the library: %w\n%s", err, out)
	}
	if !v.race {
		return to, nil
	}
	cmd = exec.Command("go", "build", "-race", "-tags", "verbs", "-buildmode=c-archive", "-o", filepath.Join(to, archive), "../device")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the Go half with the race detector: %w\n%s", err, out)
	}
	return to, nil
}

// archive is the Go half for programs that are linked with it.
const archive = "device.a"

// library builds the library, once, and returns its folder.
func (v variant) library(t *testing.T) string {
	t.Helper()
	if os.Getenv(guestVariable) != "" {
		return guestLibrary
	}
	const what = "the library is built (scripts/setup.sh installs what that needs)"
	for _, header := range []string{"infiniband/verbs.h", "rdma/rdma_cma.h"} {
		_, err := os.Stat(filepath.Join("/usr/include", header))
		netns.Need(t, err, what)
	}
	_, err := exec.LookPath("cc")
	netns.Need(t, err, what)
	to, err := builds[v.name]()
	require.NoError(t, err)
	return to
}

// environment returns the environment that preloads the library.
func (v variant) environment(t *testing.T, more ...string) []string {
	t.Helper()
	preload := filepath.Join(v.library(t), "libverbena.so")
	env := os.Environ()
	if len(v.flags) > 0 {
		out, err := exec.Command("cc", "-print-file-name=libasan.so").Output()
		require.NoError(t, err)
		// AddressSanitizer must be first. It must leave addresses to the Go heap of the race
		// detector, which has fixed ones.
		preload = strings.TrimSpace(string(out)) + " " + preload
		env = append(env, "ASAN_OPTIONS=protect_shadow_gap=0:detect_leaks=0:use_sigaltstack=0", "GORACE=halt_on_error=1")
	}
	return append(append(env, "LD_PRELOAD="+preload), more...)
}

// timeLimit is patience with programs that do much.
const timeLimit = 5 * time.Minute

// run runs a program, and returns what it printed.
func run(t *testing.T, env []string, words ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	p, err := start(ctx, env, words)
	require.NoError(t, err)
	err = p.Wait()
	return p.output.String(), err
}
