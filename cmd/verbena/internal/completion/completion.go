// Package completion writes what shells need to complete the command line of verbena, from the
// definitions of its flags.
package completion

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/internal/usage"
)

// shells write the script of a shell.
var shells = map[string]func([]*usage.Page) string{"bash": Bash, "zsh": Zsh, "fish": Fish}

// devices is the argument with which the scripts ask for the names of the devices.
const devices = "devices"

const text = `Prints the script with which a shell completes commands, flags and values. To try it:

  . <(verbena completion bash)
  verbena completion fish | source
  verbena completion zsh >_verbena; fpath=($PWD $fpath); autoload -U compinit; compinit`

// Page describes the command.
func Page() *usage.Page {
	return &usage.Page{Name: "verbena completion", About: "print the completion script of a shell",
		Forms: []string{strings.Join(slices.Sorted(maps.Keys(shells)), "|")}, Text: text, Flags: usage.NewFlags("verbena completion")}
}

// Main runs the command for the commands that pages describe, and returns its exit code.
func Main(_ context.Context, pages []*usage.Page, args []string, stdout, stderr io.Writer) int {
	p := Page()
	operands, err := p.Parse(args, stdout)
	if err != nil {
		return exit.WrongArguments(p.Name, err, stderr)
	}
	if len(operands) == 1 {
		if operands[0] == devices {
			listDevices(stdout)
			return exit.OK
		}
		if script := shells[operands[0]]; script != nil {
			_, _ = io.WriteString(stdout, script(pages))
			return exit.OK
		}
	}
	return exit.WrongArguments(p.Name, errors.New("name the shell: "+p.Forms[0]), stderr)
}

// listDevices prints the names of the devices. A shell that completes has no use for an error.
func listDevices(w io.Writer) {
	list, _ := device.List()
	for _, d := range list {
		_, _ = fmt.Fprintln(w, d.Name)
	}
}

// kind is what the shell itself completes.
type kind int

const (
	nothing kind = iota
	words
	file
	folder
	host
	program // and its arguments
	deviceName
)

// valueOf says what the value of a flag is, and the words that it is one of.
func valueOf(f usage.Flag) (kind, []string) {
	switch {
	case strings.Contains(f.Type, "|"):
		return words, strings.Split(f.Type, "|")
	case f.Type == "file":
		return file, nil
	case f.Type == "folder":
		return folder, nil
	case f.Type == "device":
		return deviceName, nil
	}
	return nothing, nil
}

// operandOf says what the operands of a command are, and the words that they are among.
func operandOf(p *usage.Page) (kind, []string) {
	forms := strings.Join(p.Forms, " ")
	switch {
	case strings.Contains(forms, "FILE"):
		return file, nil
	case strings.Contains(forms, "DIR"):
		return folder, nil
	case strings.Contains(forms, "COMMAND"):
		return program, nil
	case len(p.Forms) == 1 && strings.Contains(forms, "|"):
		return words, strings.Split(forms, "|")
	case strings.Contains(forms, "HOST"):
		return host, nil
	}
	return nothing, nil
}

// command is the word that chooses a page.
func command(p *usage.Page) string { return strings.TrimPrefix(p.Name, "verbena ") }

// others are the words that choose no page.
var others = map[string]string{"help": "show the flags of a command", "version": "show the version"}

// names are all first words.
func names(pages []*usage.Page) []string {
	list := slices.Collect(maps.Keys(others))
	for _, p := range pages {
		list = append(list, command(p))
	}
	slices.Sort(list)
	return list
}

// dashed are the names of a flag as they are written.
func dashed(f usage.Flag) (list []string) {
	for _, n := range f.Names {
		list = append(list, "-"+n)
	}
	return list
}

// quote quotes text for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
