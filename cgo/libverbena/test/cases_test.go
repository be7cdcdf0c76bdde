//go:build linux

package test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// compile compiles a program of testdata, and returns its path.
func (v variant) compile(t *testing.T, name string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), name)
	args := []string{"-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-o", to, filepath.Join("testdata", name+".c")}
	if len(v.flags) > 0 {
		args = append(args, "-fsanitize=address")
	}
	out, err := exec.Command("cc", append(args, "-libverbs", "-lpthread")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return to
}

// messages are what cases print, instead of nothing.
var messages = map[string]string{
	"fork_after_use": "was forked after its parent had used the verbs",
	"wrong_devices":  `interface "nonsense" does not exist`,
}

// TestCases runs the cases of a program in C, in each variant of the library.
func TestCases(t *testing.T) {
	for _, v := range []variant{plain, checked} {
		t.Run(v.name, func(t *testing.T) {
			if testing.Short() && len(v.flags) > 0 {
				t.Skip("the library is built with the race detector and AddressSanitizer in make full")
			}
			env := v.environment(t, "VERBENA_DEVICES=soft-lo")
			program := v.compile(t, "cases")
			list, err := run(t, env, program)
			require.NoError(t, err, "%s", list)
			names := strings.Fields(list)
			require.NotEmpty(t, names)
			for _, name := range names {
				t.Run(name, func(t *testing.T) {
					env := env
					if name == "wrong_devices" {
						env = v.environment(t, "VERBENA_DEVICES=soft-lo soft-nonsense")
					}
					out, err := run(t, env, program, name)
					require.NoError(t, err, "%s", out)
					want := messages[name]
					if want == "" {
						assert.Empty(t, out)
						return
					}
					assert.Contains(t, out, want)
					assert.Equal(t, 1, strings.Count(out, "verbena:"), "%s", out)
				})
			}
		})
	}
}
