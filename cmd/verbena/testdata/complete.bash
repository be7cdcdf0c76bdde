# Prints what bash completes for the words that follow the script of the completion. compopt is for a
# command line that is being edited.
. "$1"
shift
compopt() { :; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
"$(complete -p verbena | sed 's/.*-F \([^ ]*\) .*/\1/')"
printf '%s\n' "${COMPREPLY[@]}"
