package rig_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/internal/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Two processes of rdma-core and two of perftest talk over the kernel's rxe.
func TestForeignToolsOnRxe(t *testing.T) {
	results := t.TempDir()
	out := rig.Run(t, rig.Job{
		Script: `
ibv_devinfo -d rxe0 -v
echo "second namespace: $(ip -n s -4 -br addr show v1)"

ibv_rc_pingpong -d rxe0 -g 1 -n 200 -c > server.txt &
await-port 18515
ibv_rc_pingpong -d rxe0 -g 1 -n 200 -c rxe
wait $!
cat server.txt

ib_write_bw -d rxe0 -x 1 -n 200 -s 65536 -F > /results/bw-server.txt &
await-port 18515
ib_write_bw -d rxe0 -x 1 -n 200 -s 65536 -F rxe
wait $!
`,
		MTU:     4500,
		Timeout: time.Minute,
		Results: results,
	})

	assert.Contains(t, out, "PORT_ACTIVE")
	assert.Regexp(t, `active_mtu:\s+4096`, out)
	assert.Regexp(t, `GID\[ *1\]:\s+::ffff:10\.0\.0\.1, RoCE v2`, out)
	assert.Regexp(t, `second namespace: v1@\S+ +UP +10\.0\.0\.2/24`, out)

	assert.Len(t, regexp.MustCompile(`200 iters in [0-9.]+ seconds`).FindAllString(out, -1), 2, "both ping-pongs end")
	row := regexp.MustCompile(`(?m)^ *65536 +200 +\S+ +(\S+)`)
	line := row.FindStringSubmatch(out)
	require.NotNil(t, line, "ib_write_bw prints a row")
	average, err := strconv.ParseFloat(line[1], 64)
	require.NoError(t, err)
	assert.Positive(t, average)

	server, err := os.ReadFile(filepath.Join(results, "bw-server.txt"))
	require.NoError(t, err, "the guest's /results is the host's folder")
	assert.Regexp(t, row, string(server))

}

// Programs of a job come with their permissions and libraries, scripts with
// what bash has.
func TestFilesAndScript(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "below"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "below", "text"), []byte("brought along\n"), 0o644))
	tool := filepath.Join(folder, "tool")
	require.NoError(t, os.WriteFile(tool, []byte("#!/bin/sh\necho \"tool: $1\"\n"), 0o755))

	out := rig.Run(t, rig.Job{
		Files: map[string]string{
			"/data":         folder,
			"/usr/bin/tool": tool,
			"/bin/rigtest":  rig.BuildTest(t, "."),
		},
		Script: `
cat /data/below/text
tool "$((6 * 7))" >&2
echo "mtu $(cat /sys/class/net/v0/mtu) $(ip netns exec s cat /sys/class/net/v1/mtu)"
rigtest -test.run '^TestTail$' -test.v
if false; then echo never; fi
! false
echo last
`,
	})
	assert.Contains(t, out, "brought along\n")
	assert.Contains(t, out, "tool: 42\n")
	assert.Contains(t, out, "mtu 1500 1500\n")
	assert.Contains(t, out, "--- PASS: TestTail")
	assert.True(t, strings.HasSuffix(out, "last\n"), "standard error and output come in order: %q", out)
}
