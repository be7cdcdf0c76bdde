package samples

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every program prints its version on standard output, and succeeds.
func TestVersion(t *testing.T) {
	folders, err := filepath.Glob("*/main.go")
	require.NoError(t, err)
	require.NotEmpty(t, folders)
	for _, main := range folders {
		name := filepath.Dir(main)
		path := filepath.Join(bin, name)
		if _, err := os.Stat(path); os.IsNotExist(err) {
			continue // not for this system
		}
		var stdout, stderr bytes.Buffer
		cmd := exec.Command(path, "-version")
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		require.NoError(t, cmd.Run(), name)
		assert.Regexp(t, "^"+regexp.QuoteMeta(name)+` (devel|v\d\S*) \((revision [0-9a-f]+(, modified)?; )?go\S+ \w+/\w+\)\n$`, stdout.String())
		assert.Empty(t, stderr.String(), name)
		help, err := exec.Command(path, "-h").Output()
		require.NoError(t, err, name)
		assert.Equal(t, 1, strings.Count(string(help), "-version\n"), name)
	}
}
