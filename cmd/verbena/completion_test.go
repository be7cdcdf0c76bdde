package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/test/netns"
)

// shell says how to ask a shell for what completes a line, with the script in a folder.
type shell struct {
	script  string // its name
	command func(folder, line string) []string
}

var shells = map[string]shell{
	"bash": {"verbena.bash", func(folder, line string) []string {
		return append([]string{"testdata/complete.bash", filepath.Join(folder, "verbena.bash")}, strings.Split(line, " ")...)
	}},
	"zsh": {"_verbena", func(folder, line string) []string {
		return []string{"-f", "testdata/complete.zsh", folder, filepath.Join(folder, "shown"), line}
	}},
	"fish": {"verbena.fish", func(folder, line string) []string {
		return []string{"--no-config", "-c", `source $argv[1]; complete -C $argv[2] | string split -f 1 \t; true`, filepath.Join(folder, "verbena.fish"), line}
	}},
}

// The shells themselves complete commands, flags in all spellings, values and operands.
func TestCompletion(t *testing.T) {
	for name, s := range shells {
		t.Run(name, func(t *testing.T) {
			_, err := exec.LookPath(name)
			netns.Need(t, err, "completion is tested in "+name)
			folder := t.TempDir()
			// The script asks verbena for the names of the devices.
			require.NoError(t, os.Symlink(tool.Path(t), filepath.Join(folder, "verbena")))
			t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
			t.Setenv(asProgram, "1")
			var out, stderr bytes.Buffer
			require.Equal(t, exit.OK, run(context.Background(), []string{"completion", name}, &out, &stderr), "%s", &stderr)
			require.NoError(t, os.WriteFile(filepath.Join(folder, s.script), out.Bytes(), 0o600))
			data := filepath.Join(folder, "a capture.pcap")
			require.NoError(t, os.WriteFile(data, nil, 0o600))
			require.NoError(t, os.Mkdir(filepath.Join(folder, "a folder"), 0o700))
			require.NoError(t, os.Symlink("verbena", filepath.Join(folder, "zz-verbena-test")))
			complete := func(line string) []string {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, name, s.command(folder, line)...)
				cmd.Stderr, cmd.WaitDelay = os.Stderr, time.Second
				b, err := cmd.Output()
				require.NoError(t, err)
				return strings.Split(strings.TrimSpace(string(b)), "\n")
			}
			for line, want := range map[string][]string{
				"verbena pe":                   {"perf"},
				"verbena help pi":              {"ping"},
				"verbena ping -siz":            {"-size"},
				"verbena perf -tx":             {"-tx-depth"},
				"verbena receive -existing ":   {"overwrite", "refuse", "skip"},
				"verbena completion ":          {"bash", "fish", "zsh"},
				"verbena perf -ib-dev soft-lo": {"soft-lo"},
				"verbena run -d soft-lo zz-v":  {"zz-verbena-test"},
			} {
				got := complete(line)
				slices.Sort(got)
				assert.Equal(t, want, slices.Compact(got), line)
			}
			first := complete("verbena ")
			for _, c := range commands() {
				assert.Contains(t, first, c.name())
				// Every spelling of every flag.
				for _, f := range c.page.List() {
					for _, spelling := range f.Names {
						assert.Contains(t, out.String(), spelling)
					}
				}
			}
			// Names of files may have spaces; a folder is no capture, but the way to one.
			for line, want := range map[string]string{"verbena analyse ": "capture.pcap", "verbena receive ": "folder"} {
				assert.Contains(t, strings.Join(complete(line+folder+"/"), "\n"), want, line)
			}
			assert.NotContains(t, strings.Join(complete("verbena receive "+folder+"/"), "\n"), "capture.pcap")
		})
	}
}

// A name of a device is no command for the shell.
func TestCompletionOfHostileNames(t *testing.T) {
	folder := t.TempDir()
	fake := "#!/bin/sh\necho 'soft-$(touch pwned)'\n"
	require.NoError(t, os.WriteFile(filepath.Join(folder, "verbena"), []byte(fake), 0o700))
	var out, stderr bytes.Buffer
	require.Equal(t, exit.OK, run(context.Background(), []string{"completion", "bash"}, &out, &stderr), "%s", &stderr)
	script := filepath.Join(folder, "verbena.bash")
	require.NoError(t, os.WriteFile(script, out.Bytes(), 0o600))
	complete, err := filepath.Abs("testdata/complete.bash")
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "bash", complete, script, filepath.Join(folder, "verbena"), "perf", "-d", "so")
	cmd.Dir = folder
	b, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", b)
	assert.Equal(t, "soft-$(touch pwned)\n", string(b))
	assert.NoFileExists(t, filepath.Join(folder, "pwned"))
}

// groff has nothing to say against the manual pages, and shows what the flags do.
func TestManual(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "man1")
	var out, stderr bytes.Buffer
	require.Equal(t, exit.OK, run(context.Background(), []string{"man", folder}, &out, &stderr), "%s", &stderr)
	_, err := exec.LookPath("groff")
	netns.Need(t, err, "manual pages are shown by groff")
	show := func(name string) string {
		cmd := exec.Command("groff", "-man", "-Tutf8", "-ww", "-P-cbou", filepath.Join(folder, name))
		var warnings bytes.Buffer
		cmd.Stderr = &warnings
		b, err := cmd.Output()
		require.NoError(t, err)
		assert.Empty(t, warnings.String())
		return strings.Join(strings.Fields(string(b)), " ")
	}
	all := show("verbena.1")
	for _, c := range commands() {
		name := "verbena-" + c.name()
		assert.Contains(t, all, name+"(1)")
		page := show(name + ".1")
		assert.Contains(t, page, strings.ToUpper(name)+"(1)")
		for _, f := range c.page.List() {
			assert.Contains(t, page, "-"+strings.Join(f.Names, ", -"))
		}
	}
	assert.Contains(t, show("verbena-run.1"), `verbena run -faults 'loss=0.01' -- ib_write_bw HOST at the other`)

	require.Equal(t, exit.Usage, run(context.Background(), []string{"man"}, &out, &stderr))
	require.Equal(t, exit.Failed, run(context.Background(), []string{"man", "/dev/null/x"}, &out, &stderr))
	require.Equal(t, exit.Usage, run(context.Background(), []string{"completion", "csh"}, &out, &stderr))
	assert.Contains(t, stderr.String(), "name the shell: bash|fish|zsh")
}
