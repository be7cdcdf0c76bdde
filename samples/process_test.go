package samples

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// process is a program that the test has started.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout output
	stderr output
}

// output can be read while it is written.
type output struct {
	mu   sync.Mutex
	b    bytes.Buffer
	text string        // watched for
	seen chan struct{} // closed when the text was written
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.b.Write(p)
	if o.text != "" && bytes.Contains(o.b.Bytes(), []byte(o.text)) {
		o.text = ""
		close(o.seen)
	}
	return n, err
}

// watch returns a channel that is closed when the text is written.
func (o *output) watch(text string) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = make(chan struct{})
	if o.text = text; bytes.Contains(o.b.Bytes(), []byte(text)) {
		o.text = ""
		close(o.seen)
	}
	return o.seen
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// start starts one of our programs, or any other. Its standard input stays open,
// and empty.
func start(t *testing.T, command ...string) *process {
	t.Helper()
	if ours := filepath.Join(bin, command[0]); !filepath.IsAbs(command[0]) {
		if _, err := os.Stat(ours); err == nil {
			command[0] = ours
		}
	}
	p := &process{t: t, cmd: exec.Command(command[0], command[1:]...)}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	_, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	return p
}

// await waits for the program to log or print a text.
func (p *process) await(text string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		return strings.Contains(p.stderr.String()+p.stdout.String(), text)
	}, 5*time.Minute, time.Millisecond, "%v has not said %q", p.cmd.Args, text)
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// code waits for the end of the program; it is -1 if a signal has killed it.
func (p *process) code() int {
	p.t.Helper()
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(p.t, err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// lastLine is the last line of standard error: the error.
func (p *process) lastLine() string {
	lines := strings.Split(strings.TrimSpace(p.stderr.String()), "\n")
	return lines[len(lines)-1]
}
