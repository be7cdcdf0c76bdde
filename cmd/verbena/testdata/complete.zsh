# Prints what an interactive zsh completes for the line $3, with the script in the folder $1; the file $2
# is for its own use.
zmodload zsh/zpty
export FOLDER=$1 OUT=$2 LINE=$3
: >$OUT
zpty z zsh -f -i
zpty -w z '
	compadd() {
		if [[ " $* " != *\ -[OAD]\ * ]]; then
			local -a hits
			builtin compadd -A hits "$@"
			print -rl -- $hits >>$OUT
		fi
		builtin compadd "$@"
	}
	fill() { BUFFER=$LINE; CURSOR=$#BUFFER }
	finish() { print THE END >>$OUT }
	fpath=($FOLDER $fpath)
	autoload -U compinit && compinit -u -D
	zle -N fill && zle -N finish
	bindkey "^I" complete-word && bindkey "^X" fill && bindkey "^F" finish
	print it is re""ady
'
zpty -r -m z shown '*it is ready*'
zpty -w -n z $'\C-x\t\C-f'
until grep -q 'THE END' $OUT; do
	zpty -r -t z shown || sleep 0.01
done
grep -v 'THE END' $OUT
zpty -d z
