package completion

import (
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/internal/usage"
)

// Bash is the script for bash. It needs nothing but bash; for the program of verbena run it uses the package
// bash-completion if that is loaded.
func Bash(pages []*usage.Page) string {
	var b strings.Builder
	all := strings.Join(names(pages), " ")
	fmt.Fprintf(&b, `# bash completion for verbena, written by verbena completion bash
_verbena() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} flags= values= operand= i
	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		COMPREPLY=($(compgen -W '%s' -- "$cur"))
		return
	fi
	case ${COMP_WORDS[1]} in
	help)
		((COMP_CWORD == 2)) && COMPREPLY=($(compgen -W '%s' -- "$cur"))
		return
		;;
`, all, all)
	for _, p := range pages {
		list := p.List()
		var flags, valued []string
		cases := &strings.Builder{}
		for _, f := range list {
			flags = append(flags, dashed(f)...)
			if f.Type == "" {
				continue
			}
			valued = append(valued, dashed(f)...)
			fmt.Fprintf(cases, "\t\t%s) values=%s ;;\n", strings.Join(dashed(f), " | "), quote(bashValue(valueOf(f))))
		}
		fmt.Fprintf(&b, "\t%s)\n\t\tflags=%s operand=%s\n", command(p), quote(strings.Join(append(flags, "-help"), " ")), quote(bashValue(operandOf(p))))
		if k, _ := operandOf(p); k == program {
			fmt.Fprintf(&b, `		for ((i = 2; i < COMP_CWORD; i++)); do # after the program, everything is its own
			case ${COMP_WORDS[i]} in
			%s) ((i++)) ;;
			-?*) ;;
			*)
				if declare -F _command_offset >/dev/null; then _command_offset $i; else compopt -o default; fi
				return
				;;
			esac
		done
`, strings.Join(valued, " | "))
		}
		if cases.Len() > 0 {
			fmt.Fprintf(&b, "\t\tcase $prev in\n%s\t\tesac\n", cases)
		}
		b.WriteString("\t\t;;\n")
	}
	fmt.Fprintf(&b, `	*) return ;;
	esac
	if [[ ! $values ]]; then
		values=$operand
		if [[ $cur == -* ]]; then
			COMPREPLY=($(compgen -W "$flags" -- "$cur"))
			return
		fi
	fi
	case $values in
	none) ;;
	file) compopt -o default ;;
	folder) compopt -o dirnames ;;
	host) COMPREPLY=($(compgen -A hostname -- "$cur")) ;;
	program) COMPREPLY=($(compgen -c -- "$cur")) ;;
	device) # compgen -W would expand the names, and whoever names an interface could run commands
		while IFS= read -r i; do
			[[ $i == "$cur"* ]] && COMPREPLY+=("$i")
		done < <("${COMP_WORDS[0]}" completion %s 2>/dev/null)
		;;
	*) COMPREPLY=($(compgen -W "$values" -- "$cur")) ;;
	esac
}
complete -F _verbena verbena
`, devices)
	return b.String()
}

func bashValue(k kind, list []string) string {
	if k == words {
		return strings.Join(list, " ")
	}
	return [...]string{nothing: "none", file: "file", folder: "folder", host: "host", program: "program", deviceName: "device"}[k]
}
