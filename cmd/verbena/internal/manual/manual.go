// Package manual writes manual pages, in the language of man(7), from the definitions of flags.
package manual

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/internal/usage"
	"github.com/verbena-rdma/verbena/internal/version"
)

// Page describes the command.
func Page() *usage.Page {
	return &usage.Page{Name: "verbena man", About: "write the manual pages of all commands into a folder",
		Forms: []string{"DIR"}, Text: "Writes verbena.1, verbena-ping.1 and so on into the folder DIR, which is made if it does not exist.",
		Flags: usage.NewFlags("verbena man")}
}

// Main runs the command for a program whose commands are pages, and returns its exit code.
func Main(ctx context.Context, pages []*usage.Page, args []string, stdout, stderr io.Writer) int {
	p := Page()
	operands, err := p.Parse(args, stdout)
	if err == nil && len(operands) != 1 {
		err = errors.New("name one folder")
	}
	if err != nil {
		return exit.WrongArguments(p.Name, err, stderr)
	}
	return exit.Code(ctx, p.Name, write(operands[0], pages), stderr)
}

func write(folder string, pages []*usage.Page) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	put := func(name, text string) error {
		return os.WriteFile(filepath.Join(folder, name+".1"), []byte(text), 0o644)
	}
	err := put("verbena", overview(pages))
	for _, p := range pages {
		err = errors.Join(err, put(name(p), manual(p)))
	}
	return err
}

// name is the name of a page, as in git-log(1).
func name(p *usage.Page) string { return strings.ReplaceAll(p.Name, " ", "-") }

// overview is the page of the program.
func overview(pages []*usage.Page) string {
	var b strings.Builder
	head(&b, "verbena", "RDMA between any two hosts, with and without adapters")
	b.WriteString(".SH SYNOPSIS\n.B verbena\n.I COMMAND\n.RI [ argument ...]\n.SH COMMANDS\n")
	for _, p := range pages {
		fmt.Fprintf(&b, ".TP\n.BR %s (1)\n%s\n", roff(name(p)), roff(p.About))
	}
	b.WriteString(".TP\n.B verbena version\nshow the version, the commit and the version of Go\n")
	b.WriteString(".SH SEE ALSO\nhttps://github.com/verbena-rdma/verbena\n")
	return b.String()
}

// manual is the page of a command.
func manual(p *usage.Page) string {
	var b strings.Builder
	head(&b, name(p), p.About)
	b.WriteString(".SH SYNOPSIS\n")
	for i, form := range p.Forms {
		if i > 0 {
			b.WriteString(".br\n")
		}
		fmt.Fprintf(&b, ".B %s\n%s\n", roff(p.Name), roff(form))
	}
	b.WriteString(".SH DESCRIPTION\n")
	paragraphs(&b, p.Text)
	if list := p.List(); len(list) > 0 {
		b.WriteString(".SH OPTIONS\n")
		for _, f := range list {
			b.WriteString(".TP\n")
			for i, n := range f.Names {
				b.WriteString([]string{"", ", "}[min(i, 1)] + `\fB` + roff("-"+n) + `\fR`)
			}
			if f.Type != "" {
				b.WriteString(` \fI` + roff(f.Type) + `\fR`)
			}
			b.WriteString("\n" + roff(f.About) + "\n")
		}
	}
	b.WriteString(".SH SEE ALSO\n.BR verbena (1)\n")
	return b.String()
}

func head(b *strings.Builder, name, about string) {
	fmt.Fprintf(b, ".TH %s 1 \"\" \"verbena %s\" Verbena\n.SH NAME\n%s \\- %s\n", roff(strings.ToUpper(name)), version.Number, roff(name), roff(about))
}

// paragraphs writes text whose paragraphs are divided by empty lines. Lines that begin with a space are
// shown as they are.
func paragraphs(b *strings.Builder, text string) {
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		b.WriteString(".PP\n")
		example := strings.HasPrefix(paragraph, " ")
		if example {
			b.WriteString(".nf\n")
		}
		b.WriteString(roff(paragraph) + "\n")
		if example {
			b.WriteString(".fi\n")
		}
	}
}

// roff escapes what has a meaning for roff.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", "...", "µ", `\(mc`, "×", `\(mu`, "–", `\(en`,
		"'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
