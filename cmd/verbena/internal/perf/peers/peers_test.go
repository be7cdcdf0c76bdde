package peers

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
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
		{[]string{"-h"}, exit.OK, "-rounds"},
		{[]string{"-x"}, exit.Usage, "not defined"},
		{[]string{"somewhere"}, exit.Usage, `unexpected argument "somewhere"`},
		{[]string{"-rounds", "0"}, exit.Usage, "-rounds is 0"},
		{[]string{"-D", "1ms"}, exit.Usage, "-D is 1ms"},
		{[]string{"-D", "20s"}, exit.Usage, "-timeout is 20s"},
		{[]string{"-scene", "local,moon"}, exit.Usage, `no scene "moon"`},
		{[]string{"-json", "-", "-markdown", "-"}, exit.Usage, "cannot both"},
		{[]string{"-markdown", file}, exit.Usage, "has no place for the tables"},
		{[]string{"-markdown", file + "x"}, exit.Usage, "no such file"},
	} {
		var out, err bytes.Buffer
		assert.Equal(t, c.code, Main(t.Context(), c.args, &out, &err), c.args)
		assert.Contains(t, err.String(), c.says)
		assert.Empty(t, out.String())
	}
}
