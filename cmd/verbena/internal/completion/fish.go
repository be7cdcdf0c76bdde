package completion

import (
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/internal/usage"
)

// Fish is the script for fish.
func Fish(pages []*usage.Page) string {
	var b strings.Builder
	b.WriteString("# fish completion for verbena, written by verbena completion fish\ncomplete -c verbena -f\n")
	first := func(name, about string) {
		fmt.Fprintf(&b, "complete -c verbena -n __fish_use_subcommand -a %s -d %s\n", name, fishText(about))
	}
	for _, p := range pages {
		first(command(p), p.About)
	}
	for _, name := range names(nil) {
		first(name, others[name])
	}
	fmt.Fprintf(&b, "complete -c verbena -n '__fish_seen_subcommand_from help' -a %s\n", fishText(strings.Join(names(pages), " ")))
	for _, p := range pages {
		// The second word, because arguments may be named like commands.
		begin := fmt.Sprintf("complete -c verbena -n 'contains -- %s (commandline -opc)[2]'", command(p))
		var valued []string
		for _, f := range p.List() {
			b.WriteString(begin)
			for _, name := range f.Names {
				fmt.Fprintf(&b, " -o %s", name)
			}
			if f.Type != "" {
				valued = append(valued, dashed(f)...)
				b.WriteString(fishValue(valueOf(f)))
			}
			fmt.Fprintf(&b, " -d %s\n", fishText(f.About))
		}
		fmt.Fprintf(&b, "%s -o help -d 'show the help'\n", begin)
		switch k, list := operandOf(p); k {
		case nothing:
		case program:
			fmt.Fprintf(&b, "%s -a '(__fish_complete_subcommand --fcs-skip=2 %s)'\n", begin, strings.Join(valued, " "))
		default:
			fmt.Fprintf(&b, "%s%s\n", begin, strings.TrimPrefix(fishValue(k, list), " -x"))
		}
	}
	return b.String()
}

// fishText quotes text for fish, which has escapes within quotes.
func fishText(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}

// fishValue are the flags of complete for a value that has to follow.
func fishValue(k kind, list []string) string {
	switch k {
	case words:
		return " -x -a " + fishText(strings.Join(list, " "))
	case file:
		return " -r -F"
	case folder:
		return " -x -a '(__fish_complete_directories)'"
	case host:
		return " -x -a '(__fish_print_hostnames)'"
	case deviceName:
		return " -x -a '(verbena completion " + devices + " 2>/dev/null)'"
	}
	return " -x"
}
