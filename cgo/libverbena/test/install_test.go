//go:build linux

package test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
)

// What make install installs works where it is, for a packager too.
func TestInstall(t *testing.T) {
	plain.library(t) // skips without what the library is built with
	for _, program := range []string{"make", "pkg-config", "ibv_devices"} {
		_, err := exec.LookPath(program)
		netns.Need(t, err, "make install is tested with "+program)
	}
	destination := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "make", "-C", "../../..", "install", "PREFIX=/opt/verbena", "DESTDIR="+destination).CombinedOutput()
	require.NoError(t, err, "%s", out)
	prefix := filepath.Join(destination, "opt/verbena")
	for _, name := range []string{
		"share/man/man1/verbena.1", "share/man/man1/verbena-ping.1", "share/bash-completion/completions/verbena",
		"share/zsh/site-functions/_verbena", "share/fish/vendor_completions.d/verbena.fish", "lib/verbena/verbena-lib/librdmacm/librdmacm.so.1", "lib/verbena/verbena-lib/libefa/libefa.so.1",
	} {
		assert.FileExists(t, filepath.Join(prefix, name))
	}
	shown, err := run(t, nil, filepath.Join(prefix, "bin/verbena"), "run", "-v", "-d", "soft-lo", "ibv_devices")
	require.NoError(t, err, "%s", shown)
	assert.Contains(t, shown, filepath.Join(prefix, "lib/verbena/libverbena.so"))
	assert.Contains(t, shown, "soft-lo")
}
