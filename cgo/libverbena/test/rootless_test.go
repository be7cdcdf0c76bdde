//go:build linux

package test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rootless returns the beginning of a command line that runs as a user without privileges, in new
// namespaces for users, networks and mounts, in which the loopback interface is up.
func rootless(t *testing.T) []string {
	t.Helper()
	needProgram(t, "unshare", "util-linux")
	needProgram(t, "ip", "iproute2")
	words := []string{"unshare", "-r", "-n", "-m", "sh", "-c", `ip link set lo up && exec "$@"`, "sh"}
	if os.Getuid() == 0 {
		needProgram(t, "setpriv", "util-linux")
		words = append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}, words...)
	}
	out, err := exec.Command(words[0], append(words[1:], "true")...).CombinedOutput()
	if err != nil {
		t.Skipf("skipped: this system does not let users without privileges create namespaces: %v: %s", err, out)
	}
	return words
}

// readable lets all users read the library, and returns its folder.
func readable(t *testing.T) string {
	t.Helper()
	require.NoError(t, os.Chmod(folder, 0o755)) // #nosec G302 -- it holds programs
	return plain.library(t)
}

// without hides files of the system from the processes of a mount namespace. A file that is
// empty cannot be loaded.
const without = `
for f in $HIDE; do
	if [ -d "$f" ]; then mount -t tmpfs none "$f"; elif [ -e "$f" ]; then mount --bind /dev/null "$(realpath "$f")"; fi || exit 1
done
`

// both runs a server, and its client until it succeeds, since nothing shows whether the server
// listens. What they print, and what the dynamic linker loaded for the client, is in the folder $OUT.
const both = `
$SERVER >"$OUT/server" 2>&1 & server=$!
for try in $(seq 100); do
	LD_DEBUG=files LD_DEBUG_OUTPUT="$OUT/loaded" $CLIENT >"$OUT/client" 2>&1 && break
	sleep 0.2
done || exit 1
wait $server
`

// systemFiles are the files of the kernel's devices and of libibverbs' providers.
func systemFiles() []string {
	files := []string{"/dev/infiniband", "/etc/libibverbs.d"}
	providers, _ := filepath.Glob("/usr/lib/*/libibverbs")
	return append(files, providers...)
}

// systemLibraries are libibverbs, librdmacm and libefa.
func systemLibraries(t *testing.T) (files []string) {
	t.Helper()
	for _, pattern := range []string{"/usr/lib/*/libibverbs.so.1", "/usr/lib/*/librdmacm.so.1", "/usr/lib/*/libefa.so.1"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		files = append(files, found...)
	}
	return files
}

// Programs run for users without privileges, without /dev/infiniband, in a network that has a
// loopback interface only; with the library preloaded, and in the place of libibverbs and
// librdmacm, which cannot be loaded then.
func TestRootless(t *testing.T) {
	prefix := rootless(t)
	library := readable(t)
	for _, way := range []struct {
		name, env string
		hide      []string
	}{
		{"preloaded", "LD_PRELOAD=" + filepath.Join(library, "libverbena.so"), systemFiles()},
		{"in the place", "LD_LIBRARY_PATH=" + filepath.Join(library, "verbena-lib", "libibverbs") + ":" + filepath.Join(library, "verbena-lib", "librdmacm") + ":" + filepath.Join(library, "verbena-lib", "libefa"), append(systemFiles(), systemLibraries(t)...)},
	} {
		for _, pair := range []struct{ server, client, prints string }{
			{"ib_write_bw -d soft_lo -n 200", "ib_write_bw -d soft_lo -n 200 127.0.0.1", "#bytes"},
			{"rping -s -a 127.0.0.1 -C 5 -v", "rping -c -a 127.0.0.1 -C 5 -v -V", "rdma-ping-4"},
		} {
			program, _, _ := strings.Cut(pair.client, " ")
			t.Run(way.name+"/"+program, func(t *testing.T) {
				needProgram(t, program, packageOf(program))
				out := filepath.Join(folder, strings.ReplaceAll(t.Name(), "/", "-"))
				require.NoError(t, os.Mkdir(out, 0o777))
				require.NoError(t, os.Chmod(out, 0o777)) // #nosec G302 -- another user writes to it
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				env := append(os.Environ(), "HIDE="+strings.Join(way.hide, " "), "OUT="+out,
					"SERVER=env "+way.env+" "+pair.server, "CLIENT=env "+way.env+" "+pair.client)
				p, err := start(ctx, env, append(prefix, "sh", "-c", without+both))
				require.NoError(t, err)
				err = p.Wait()
				said := func(name string) string {
					data, err := os.ReadFile(filepath.Join(out, name))
					require.NoError(t, err)
					return string(data)
				}
				require.NoError(t, err, "%s\n%s\n%s", p.output.String(), said("server"), said("client"))
				assert.Contains(t, said("client"), pair.prints)
				assert.NotContains(t, said("client")+said("server"), "no version information")
				checkLoaded(t, out, library, way.name == "in the place")
			})
		}
	}
}

// checkLoaded checks which libraries the dynamic linker loaded, from what it wrote.
func checkLoaded(t *testing.T, folder, library string, place bool) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(folder, "loaded.*"))
	require.NoError(t, err)
	var loaded []byte
	for _, l := range logs {
		data, err := os.ReadFile(l)
		require.NoError(t, err)
		loaded = append(loaded, data...)
	}
	const start = "calling init: "
	assert.Contains(t, string(loaded), start+library+"/")
	for _, system := range systemLibraries(t) {
		if place {
			assert.NotContains(t, string(loaded), start+system)
			assert.NotContains(t, string(loaded), start+strings.TrimPrefix(system, "/usr"))
		}
	}
}
