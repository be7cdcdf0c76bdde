#!/usr/bin/env bash
# Installs the tool below the folder $1: the program, manual pages, completions and, with the build tag
# verbs in TAGS, the library for other languages, where verbena run finds it.
set -euo pipefail
umask 022 # the programs are for everybody
prefix=$(mkdir -p "$1" && cd -- "$1" >/dev/null && pwd)
cd "$(dirname "$0")/.."
go=${GO:-go} verbena=$prefix/bin/verbena
# -o replaces the file, so that a verbena that runs goes on.
"$go" build -tags "${TAGS:-}" -ldflags "${LDFLAGS:-}" -o "$verbena" ./cmd/verbena
"$verbena" man "$prefix/share/man/man1"
complete() {
	mkdir -p "$prefix/share/$2"
	"$verbena" completion "$1" >"$prefix/share/$2/$3"
}
complete bash bash-completion/completions verbena
complete zsh zsh/site-functions _verbena
complete fish fish/vendor_completions.d verbena.fish
if [ -n "${TAGS:-}" ]; then
	GO=$go scripts/library.sh "$prefix/lib/verbena"
else
	echo "without the library for verbena run: it needs cgo and the headers of libibverbs and librdmacm" >&2
fi
