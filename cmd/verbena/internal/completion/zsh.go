package completion

import (
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/internal/usage"
)

// Zsh is the script for zsh, a file _verbena in a folder of fpath.
func Zsh(pages []*usage.Page) string {
	var b strings.Builder
	b.WriteString(`#compdef verbena
# zsh completion for verbena, written by verbena completion zsh
local -a subcommands
subcommands=(
`)
	for _, p := range pages {
		fmt.Fprintf(&b, "\t%s\n", quote(command(p)+":"+p.About))
	}
	for _, name := range names(nil) {
		fmt.Fprintf(&b, "\t%s\n", quote(name+":"+others[name]))
	}
	fmt.Fprintf(&b, `)
_verbena_device() {
	local -a list
	list=(${(f)"$($words[1] completion %s 2>/dev/null)"})
	compadd -a list
}
local verbena=$words[1]
if ((CURRENT == 2)); then
	_describe command subcommands
	return
fi
local name=$words[2]
words=($verbena "${words[@]:2}")
((CURRENT--))
case $name in
help) ((CURRENT == 2)) && _describe command subcommands ;;
`, devices)
	for _, p := range pages {
		fmt.Fprintf(&b, "%s)\n\t_arguments", command(p))
		for _, f := range p.List() {
			flag := dashed(f)
			spec := quote("[" + zshText(f.About) + "]")
			if f.Type != "" {
				spec = quote("[" + zshText(f.About) + "]:" + zshText(f.Type) + ":" + zshValue(valueOf(f)))
			}
			if len(flag) == 1 {
				fmt.Fprintf(&b, " \\\n\t\t'*'%s%s", flag[0], spec)
				continue
			}
			fmt.Fprintf(&b, " \\\n\t\t'*'{%s}%s", strings.Join(flag, ","), spec)
		}
		fmt.Fprintf(&b, " \\\n\t\t'-help[show the help]'")
		switch k, list := operandOf(p); k {
		case nothing:
		case program:
			b.WriteString(" \\\n\t\t'(-)1:program: _command_names -e' '*::argument: _normal'")
		default:
			fmt.Fprintf(&b, " \\\n\t\t%s", quote("*:operand:"+zshValue(k, list)))
		}
		b.WriteString("\n\t;;\n")
	}
	b.WriteString("esac\n")
	return b.String()
}

// zshText escapes what has a meaning for _arguments.
func zshText(s string) string {
	return strings.NewReplacer(`\`, `\\`, "[", `\[`, "]", `\]`, ":", `\:`).Replace(s)
}

func zshValue(k kind, list []string) string {
	if k == words {
		return "(" + strings.Join(list, " ") + ")"
	}
	return [...]string{nothing: " ", file: "_files", folder: "_files -/", host: "_hosts", deviceName: "_verbena_device"}[k]
}
