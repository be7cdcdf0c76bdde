// Package efatest builds a libefa for tests, which behaves as the manual pages efadv_*(3)
// say, without any device.
package efatest

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

//go:embed testdata/libefa.c
var source []byte

// The version scripts of libefa's symbols, without the versions that are left out.
const (
	symbols26 = "EFA_1.1 { global: efadv_query_device; efadv_query_ah; efadv_create_qp_ex; local: *; };\n"
	symbols43 = "EFA_1.2 { global: efadv_create_cq; efadv_cq_from_ibv_cq_ex; } EFA_1.1;\n"
)

// WithClock is a version whose completion queues have timestamps.
const WithClock = 1000

// Build builds the library of a version of rdma-core, from 26 on, and returns its file.
func Build(t testing.TB, rdmaCore int) string {
	t.Helper()
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	symbols := symbols26
	if rdmaCore >= 43 {
		symbols += symbols43
	}
	library := filepath.Join(dir, "libefa.so.1")
	out, err := exec.Command("cc", "-shared", "-fPIC", "-Wall", "-Werror", fmt.Sprintf("-DRDMA_CORE=%d", rdmaCore),
		"-Wl,--version-script="+file("libefa.map", symbols), "-o", library, file("libefa.c", string(source))).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return library
}
