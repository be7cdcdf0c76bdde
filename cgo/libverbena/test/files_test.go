//go:build linux

package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// withTrees returns the environment for programs that leave their trees in a folder of the test, and
// the folder.
func withTrees(t *testing.T, more ...string) (env []string, folder string) {
	folder = t.TempDir()
	return append(os.Environ(), append(more, "XDG_RUNTIME_DIR="+folder)...), folder
}

// isEmpty checks that no tree is left.
func isEmpty(t *testing.T, folder string) {
	t.Helper()
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// Programs in C find the devices in /sys by every function that takes a path.
func TestFiles(t *testing.T) {
	env, folder := withTrees(t, "VERBENA_DEVICES=soft-lo")
	program := plain.compile(t, "files")
	for name, words := range map[string][]string{
		"verbena run":            append(verbenaRun(t), program),
		"verbena run, used":      append(verbenaRun(t), program, "used"),
		"preloaded":              {"env", "LD_PRELOAD=" + filepath.Join(plain.library(t), "libverbena.so"), program},
		"preloaded, used":        {"env", "LD_PRELOAD=" + filepath.Join(plain.library(t), "libverbena.so"), program, "used"},
		"verbena run in another": append(verbenaRun(t), "sh", "-c", strings.Join(append(verbenaRun(t), program, "used"), " ")+"; exit $?"),
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, env, words...)
			require.NoError(t, err, "%s", out)
			assert.Equal(t, "all as it should be\n", out)
			isEmpty(t, folder)
		})
	}
	t.Run("sanitized", func(t *testing.T) {
		env := append(sanitized.environment(t, "VERBENA_DEVICES=soft-lo"), "XDG_RUNTIME_DIR="+folder)
		out, err := run(t, env, sanitized.compile(t, "files"), "used")
		require.NoError(t, err, "%s", out)
		isEmpty(t, folder)
	})
}

// Shells and other programs that use no verbs see the devices.
func TestFilesOfOtherPrograms(t *testing.T) {
	env, folder := withTrees(t, "VERBENA_DEVICES=soft-lo")
	const listing = `
import glob, os
sys = '/sys/class/infiniband'
print(os.listdir(sys), os.readlink(sys + '/soft_lo'), os.path.realpath(sys + '/soft_lo'))
print(os.path.islink(sys + '/soft_lo'), sorted(e.name for e in os.scandir(sys + '/soft_lo') if e.is_dir()), glob.glob(sys + '/*/ports/*/state'))
print(sum(len(files) for _, _, files in os.walk(sys + '/soft_lo/ports/1/gids')), open(sys + '/soft_lo/ports/1/rate').read().strip())
print(os.listdir(sys + '/soft_lo/device/net'), os.open(sys, os.O_RDONLY) and os.listdir(os.open(sys + '/soft_lo/ports', os.O_RDONLY)))
`
	for _, c := range []struct{ command, says string }{
		{"ls /sys/class/infiniband", "soft_lo\n"},
		{"ls -lR /sys/class/infiniband/", "soft_lo -> ../../devices/virtual/infiniband/soft_lo\n"},
		{"ls /sys/class/infiniband/soft_lo/ports/1/pkeys", "0\n"},
		{"find /sys/class/infiniband -type l", "/sys/class/infiniband/soft_lo\n"},
		{"find /sys/class/infiniband/soft_lo/ -name sm_lid", "/sys/class/infiniband/soft_lo/ports/1/sm_lid\n"},
		{"cat /sys/class/infiniband/soft_lo/ports/1/pkeys/0", "0xffff\n"},
		{"readlink -f /sys/class/infiniband/soft_lo/device", "/sys/devices/virtual/verbena/soft_lo\n"},
		{"stat -L -c %F /sys/class/infiniband/soft_lo", "directory\n"},
		{"cd /sys/class/infiniband/soft_lo/ports && pwd && cat */link_layer && echo 1/hw_counters/rdma_*", "/sys/class/infiniband/soft_lo/ports\nEthernet\n1/hw_counters/rdma_recvs 1/hw_counters/rdma_sends\n"},
		{"bash -c 'for d in /sys/class/infiniband/*; do read type <$d/node_type; echo $d $type; done'", "/sys/class/infiniband/soft_lo 1: CA\n"},
		{python + ` -c "` + listing + `"`, `['soft_lo'] ../../devices/virtual/infiniband/soft_lo /sys/devices/virtual/infiniband/soft_lo
True ['device', 'ports', 'subsystem'] ['/sys/class/infiniband/soft_lo/ports/1/state']
16 10 Gb/sec (4X SDR)
['lo'] ['1']
`},
	} {
		out, err := run(t, env, append(verbenaRun(t), "sh", "-c", c.command+"\nexit $?")...)
		require.NoError(t, err, "%s: %s", c.command, out)
		if strings.Contains(c.command, "-lR") {
			assert.Contains(t, out, c.says)
		} else {
			assert.Equal(t, c.says, out, c.command)
		}
		isEmpty(t, folder)
	}
}

// A program removes the tree that verbena run made for it, and nothing else, whatever the variable says.
func TestFilesThatStay(t *testing.T) {
	env, folder := withTrees(t, "VERBENA_DEVICES=soft-lo", "LIBRARY="+filepath.Join(plain.library(t), "libverbena.so"))
	const script = `
set -e
cd "$XDG_RUNTIME_DIR"
umask 077
mkdir -p precious/class; touch precious/class/file precious/file
with() { VERBENA_FILES=$1 LD_PRELOAD=$LIBRARY true; }
script() { echo "$1" >"$PWD/commands"; sh "$PWD/commands"; }
as_own='VERBENA_FILES=$PWD/verbena-files-$$-1-1-1 LD_PRELOAD=$LIBRARY exec env true'
with "$PWD/precious"
with /
script 'ln -s precious verbena-files-$$-1-1-1; '"$as_own"
script 'mkdir -p verbena-files-$$-1-1-1; ln -s ../precious verbena-files-$$-1-1-1/class; '"$as_own"
script 'mkdir -p verbena-files-$$-1-1-1/devices; ln -s ../../precious verbena-files-$$-1-1-1/devices/link; '"$as_own"
script 'mkdir -p verbena-files-$$-1-1-1/class; touch verbena-files-$$-1-1-1/class/file; chmod 755 verbena-files-$$-1-1-1; '"$as_own"
ls verbena-files-*/class/file
script 'mkdir verbena-files-$$-1-1-1; touch verbena-files-$$-1-1-1/mine; '"$as_own"
ls verbena-files-*/mine
script 'mkdir -p verbena-files-1$$-1-1-1/class; touch verbena-files-1$$-1-1-1/class/other; VERBENA_FILES=$PWD/verbena-files-1$$-1-1-1 LD_PRELOAD=$LIBRARY exec env true'
ls verbena-files-*/class/other precious/class/file precious/file
script 'mkdir -p verbena-files-$$-1-1-1/class/x; touch verbena-files-$$-1-1-1/class/x/tree; '"$as_own"
ls verbena-files-*/class/x/tree || echo removed
`
	out, err := run(t, env, "sh", "-c", script)
	require.NoError(t, err, "%s", out)
	assert.Contains(t, out, "removed\n")
	require.NoError(t, os.RemoveAll(folder))
	require.NoError(t, os.Mkdir(folder, 0o700))

	// One that is killed leaves its tree to the next.
	out, err = run(t, env, append(verbenaRun(t), "sh", "-c", "kill -9 $$")...)
	require.Error(t, err, "%s", out)
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, left, 1)
	out, err = run(t, env, append(verbenaRun(t), "ls", "/sys/class/infiniband")...)
	require.NoError(t, err)
	assert.Equal(t, "soft_lo\n", out)
	isEmpty(t, folder)
}
