# Prints what bash completes for the words that follow the script of the completion. compopt, which is for
# a command line that is being edited, does what bash does then.
. "$1"
shift
compopt() {
	case $2 in
	default) mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}") ;;
	dirnames) mapfile -t COMPREPLY < <(compgen -d -- "${COMP_WORDS[COMP_CWORD]}") ;;
	esac
}
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
"$(complete -p verbena | sed 's/.*-F \([^ ]*\) .*/\1/')"
printf '%s\n' "${COMPREPLY[@]}"
