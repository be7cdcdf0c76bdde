package peers

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestUsage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.md")
	assert.NoError(t, os.WriteFile(file, []byte("no place\n"), 0o600))
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"-h"}, exitOK, "-rounds"},
		{[]string{"-x"}, exitUsage, "not defined"},
		{[]string{"somewhere"}, exitUsage, `unexpected argument "somewhere"`},
		{[]string{"-rounds", "0"}, exitUsage, "-rounds is 0"},
		{[]string{"-D", "1ms"}, exitUsage, "-D is 1ms"},
		{[]string{"-D", "20s"}, exitUsage, "-timeout is 20s"},
		{[]string{"-scene", "local,moon"}, exitUsage, `no scene "moon"`},
		{[]string{"-json", "-", "-markdown", "-"}, exitUsage, "cannot both"},
		{[]string{"-markdown", file}, exitUsage, "has no place for the tables"},
		{[]string{"-markdown", file + "x"}, exitUsage, "no such file"},
	} {
		var out, err bytes.Buffer
		assert.Equal(t, c.code, Main(t.Context(), c.args, &out, &err), c.args)
		assert.Contains(t, err.String(), c.says)
		assert.Empty(t, out.String())
	}
}
