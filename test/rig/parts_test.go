package rig

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLastLines(t *testing.T) {
	text := strings.Repeat(strings.Repeat("x", 99)+"\n", 1000) + "one\r\n\r\ntwo  \nthree"
	assert.Equal(t, []string{"one", "two", "three"}, lastLines(text, 3))
	assert.Equal(t, []string{"three"}, linesAfter(text, "two", 3))
	assert.Equal(t, []string{"two", "three"}, linesAfter(text, "four", 2))
}

func TestReport(t *testing.T) {
	var scripts int
	begun := func() { scripts++ }
	var r report
	r.read(strings.NewReader("at 1 early\nready\nat 3 f x\nfailed 7 12 g \"$1\"\nfailed 7 3 f x\nkernel <4>oops\nexit 7\n"), begun)
	assert.Equal(t, 1, scripts)
	assert.False(t, r.ready.IsZero())
	assert.False(t, r.exit.IsZero())
	assert.Equal(t, 7, r.status)
	assert.Equal(t, "3 f x", r.at)
	assert.Equal(t, []string{`line 12: g "$1": status 7`, "line 3: f x: status 7"}, r.failed)
	assert.Equal(t, []string{"<4>oops"}, r.kernel)

	r = report{}
	r.read(strings.NewReader("exit soon\n"), begun)
	assert.NotZero(t, r.status, "a status that is no number is no success")

	r = report{}
	r.read(strings.NewReader(strings.Repeat("kernel again\n", 1000)), begun)
	assert.Len(t, r.kernel, 100)
}

// The archive is read by another implementation.
func TestArchive(t *testing.T) {
	busybox, err := staticBusybox()
	if err != nil {
		Require(t)
	}
	source := filepath.Join(t.TempDir(), "source")
	require.NoError(t, os.WriteFile(source, []byte("of the host"), 0o640))

	tr := newTree(nil)
	tr.link("/bin", "usr/bin")
	tr.write("/a/b/odd", 0o755, "12345")
	tr.write("/a/empty", 0o644, "")
	require.NoError(t, tr.copy("/a/c", source))
	var archive bytes.Buffer
	require.NoError(t, tr.archive(&archive))

	target := t.TempDir()
	cmd := exec.Command(busybox, "cpio", "-i", "-d", "-m")
	cmd.Dir, cmd.Stdin = target, &archive
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)

	for name, want := range map[string]string{"a/b/odd": "12345", "a/empty": "", "a/c": "of the host"} {
		got, err := os.ReadFile(filepath.Join(target, name))
		require.NoError(t, err)
		assert.Equal(t, want, string(got), name)
	}
	info, err := os.Stat(filepath.Join(target, "a/c"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o640), info.Mode().Perm())
	link, err := os.Readlink(filepath.Join(target, "bin"))
	require.NoError(t, err)
	assert.Equal(t, "usr/bin", link)
}

// What the image has is not made again by a job: it would replace links by folders.
func TestTreeAboveAnother(t *testing.T) {
	below := newTree(nil)
	below.link("/usr/bin", "../bin")
	above := newTree(below)
	above.write("/usr/bin/x", 0o755, "")
	above.write("/opt/y", 0o644, "")
	assert.Equal(t, []string{"/opt", "/opt/y", "/usr/bin/x"}, above.names())
}

func TestSourceThatGrows(t *testing.T) {
	source := filepath.Join(t.TempDir(), "source")
	require.NoError(t, os.WriteFile(source, []byte("short"), 0o644))
	tr := newTree(nil)
	require.NoError(t, tr.copy("/x", source))
	require.NoError(t, os.WriteFile(source, []byte("longer than before"), 0o644))
	assert.ErrorContains(t, tr.archive(io.Discard), "changed while it was read")
}

func TestLibraries(t *testing.T) {
	Require(t)
	libs, err := findLibraries(t.Context())
	require.NoError(t, err)
	tool, err := program("ibv_devinfo")
	require.NoError(t, err)
	tr := newTree(nil)
	require.NoError(t, tr.copy("/bin/ibv_devinfo", tool))
	require.NoError(t, libs.addNeeded(tr))
	for _, name := range []string{libDir + "/libibverbs.so.1", libDir + "/libnl-3.so.200", libDir + "/libc.so.6", "/lib64/ld-linux-x86-64.so.2"} {
		assert.True(t, tr.has(name), name)
	}

	delete(libs, "libibverbs.so.1")
	tr = newTree(nil)
	require.NoError(t, tr.copy("/bin/ibv_devinfo", tool))
	assert.ErrorContains(t, libs.addNeeded(tr), "libibverbs.so.1")
}

func TestFilesThatAreNotPrograms(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"empty": "", "script": "#!/bin/sh\n", "cut": "\x7fELF\x02\x01\x01"} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(content), 0o755))
		libs, err := dynamic(file)
		assert.NoError(t, err, name)
		assert.Empty(t, libs, name)
	}
}

func TestLock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), file)
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = lock(ctx, file)
	require.ErrorIs(t, err, context.Canceled)

	unlock()
	unlock, err = lock(t.Context(), file)
	require.NoError(t, err)
	unlock()
}
