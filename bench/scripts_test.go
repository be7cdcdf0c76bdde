//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// standIn takes the place of both compilers. Instead of verbena and bench it makes a script that does
// what scripts/bench-peers.sh needs of them, and notes which files are beside it.
const standIn = `#!/bin/sh
while [ "$1" != -o ]; do shift; done
case $2 in
*/verbena | */bench) cat >"$2" <<'END' ;;
#!/bin/sh
case "$*" in
peers*) ls "$(dirname "$0")" >&2 ;;
plot*) : >"$2" ;;
*-once*) echo "listening 127.0.0.1:1: ready" ;;
esac
END
*) : >"$2" ;;
esac
chmod +x "$2"
`

// The scene of perftest with libverbena.so needs the library beside the program.
func TestBenchPeersBuildsTheLibrary(t *testing.T) {
	tree := t.TempDir() // the script writes into the tree that it is in
	require.NoError(t, os.CopyFS(filepath.Join(tree, "scripts"), os.DirFS("../scripts")))
	for _, folder := range []string{"docs", "bench"} {
		require.NoError(t, os.Mkdir(filepath.Join(tree, folder), 0o755))
	}
	tool := filepath.Join(tree, "compiler")
	require.NoError(t, os.WriteFile(tool, []byte(standIn), 0o755))
	for tags, library := range map[string]bool{"verbs": true, "": false} {
		cmd := exec.Command(filepath.Join(tree, "scripts", "bench-peers.sh"))
		cmd.Env = append(os.Environ(), "GO="+tool, "CC="+tool, "TAGS="+tags)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "verbena\n")
		for _, name := range []string{"libverbena.so\n", "libverbena-device.so\n"} {
			require.Equal(t, library, strings.Contains(string(out), name), "tags %q: %s", tags, out)
		}
	}
}
