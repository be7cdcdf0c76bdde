// Package usage has the one style of help of all programs, made from their flags. The flags are those of
// package flag: its spelling, -name, is that of the programs of verbs and of DOCA, which libraries for
// command lines such as cobra and kong do not have; and they would add modules to what users build.
package usage

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Page describes a program.
type Page struct {
	Name  string   // with its command, as in "verbena ping"
	About string   // one line, without a full stop; lists of programs show it
	Forms []string // of the command line, after the name
	Text  string   // what it does; lines of at most 100 characters
	Flags *flag.FlagSet
}

// NewFlags makes a set of flags that prints nothing.
func NewFlags(name string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	return f
}

// sameAs is the description of another spelling of a flag.
const sameAs = "the same as -"

// Alias defines another spelling of a flag.
func Alias(f *flag.FlagSet, alias, name string) { f.Var(f.Lookup(name).Value, alias, sameAs+name) }

// typed is the value of a flag, with the name of its type.
type typed struct {
	flag.Value
	name string
}

// SetType names the type of a flag's value, for flags whose description has no name in back quotes.
func SetType(f *flag.FlagSet, name, valueType string) {
	g := f.Lookup(name)
	g.Value = typed{g.Value, valueType}
}

// Flag describes a flag in all its spellings.
type Flag struct {
	Names []string // without "-"; the shortest is first
	Type  string   // of the value, such as duration; empty: it has none
	About string   // with the default
}

// List returns all flags, in the order of their shortest names.
func (p *Page) List() (list []Flag) {
	index := map[string]int{}
	p.Flags.VisitAll(func(g *flag.Flag) {
		if !strings.HasPrefix(g.Usage, sameAs) {
			index[g.Name] = len(list)
			list = append(list, describe(g))
		}
	})
	p.Flags.VisitAll(func(g *flag.Flag) {
		if name, ok := strings.CutPrefix(g.Usage, sameAs); ok {
			f := &list[index[name]]
			f.Names = append(f.Names, g.Name)
		}
	})
	for i := range list {
		slices.SortStableFunc(list[i].Names, func(a, b string) int { return len(a) - len(b) })
	}
	slices.SortStableFunc(list, func(a, b Flag) int {
		return cmp.Or(strings.Compare(strings.ToLower(a.Names[0]), strings.ToLower(b.Names[0])), -strings.Compare(a.Names[0], b.Names[0]))
	})
	return list
}

// types are names that package flag gives to values without one.
var types = map[string]string{"int": "number", "uint": "number", "float": "number", "string": "text", "value": "text"}

func describe(g *flag.Flag) Flag {
	valueType, about := flag.UnquoteUsage(g)
	if t, ok := g.Value.(typed); ok {
		valueType = t.name
	} else if general, ok := types[valueType]; ok {
		valueType = general
	}
	if d := g.DefValue; valueType != "" && !slices.Contains([]string{"", "0", "0s"}, d) && !strings.Contains(about, "(default") {
		if strings.Contains(d, " ") {
			d = fmt.Sprintf("%q", d)
		}
		about += " (default " + d + ")"
	}
	return Flag{[]string{g.Name}, valueType, about}
}

// String is the help.
func (p *Page) String() string {
	var b strings.Builder
	for i, form := range p.Forms {
		b.WriteString([]string{"usage: ", "       "}[min(i, 1)] + strings.TrimSpace(p.Name+" "+form) + "\n")
	}
	b.WriteString("\n" + p.Text + "\n\n")
	for _, f := range p.List() {
		_, _ = fmt.Fprintf(&b, "  %s\n        %s\n", strings.TrimSpace("-"+strings.Join(f.Names, ", -")+" "+f.Type), f.About)
	}
	return b.String()
}

// Hint adds to an error in the arguments where the flags are described.
func Hint(err error) error { return fmt.Errorf("%w; -h lists the flags", err) }

// Parse reads flags up to the first operand, and returns the operands. For -h it prints the help, and
// returns flag.ErrHelp.
func (p *Page) Parse(args []string, out io.Writer) (operands []string, err error) {
	err = p.Flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		_, _ = io.WriteString(out, p.String())
		return nil, flag.ErrHelp
	}
	return p.Flags.Args(), err
}

// ParseMixed is Parse for flags and operands in any order. After "--" nothing is a flag.
func (p *Page) ParseMixed(args []string, out io.Writer) (operands []string, err error) {
	for len(args) > 0 {
		left, err := p.Parse(args, out)
		if err != nil {
			return nil, err
		}
		if used := len(args) - len(left); used > 0 && args[used-1] == "--" {
			return append(operands, left...), nil
		}
		if len(left) == 0 {
			break
		}
		operands, args = append(operands, left[0]), left[1:]
	}
	return operands, nil
}
