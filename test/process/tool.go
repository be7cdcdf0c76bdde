package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Tool is a program that tests run as a process. Without the race detector it is the test binary, which
// has to be that program then. Under the race detector, which makes programs many times slower, it is
// built without. Tests that want to look for races run os.Args[0] for one row of their table.
type Tool struct {
	Package string // of the program: the folder, from that of the test

	mu     sync.Mutex
	folder string
}

// Path is the path of the program. The first call builds it.
func (p *Tool) Path(t testing.TB) string {
	t.Helper()
	if !raceDetector {
		return os.Args[0]
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.folder == "" {
		folder, err := os.MkdirTemp("", "verbena-tool-")
		require.NoError(t, err)
		p.folder = folder
		// Without debugging information, which takes half of the linker's time.
		out, err := exec.Command("go", "build", "-ldflags", "-s -w", "-o", filepath.Join(folder, "tool"), p.Package).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return filepath.Join(p.folder, "tool")
}

// Remove removes what Path has built.
func (p *Tool) Remove() {
	if p.folder != "" {
		_ = os.RemoveAll(p.folder)
	}
}
