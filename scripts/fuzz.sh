#!/usr/bin/env bash
# Fuzzes the code that receives packets: each fuzzer for FUZZTIME, on all processors or on
# FUZZPARALLEL of them, which print the number of inputs. Then it prints the coverage of each
# package by the seeds and kept inputs alone.
#
# With the argument keep it instead examines the inputs that Go's cache has from earlier runs.
# It copies an input to testdata/fuzz if it covers a statement that neither the seeds nor the
# other inputs there cover; the shortest inputs come first. It removes kept inputs that no
# longer add coverage, except those that are named after what they found.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
time=${FUZZTIME:-1m}
parallel=${FUZZPARALLEL:-$(getconf _NPROCESSORS_ONLN)}
transport=soft/internal/roce/transport
wire=soft/internal/roce/wire
rsocket=rsocket/internal/protocol
fuzzers=("$transport FuzzReceive" "$transport FuzzReceiveUnreliable" "$transport FuzzAccess" "$wire FuzzParse" "$wire FuzzCheckICRC"
	"$rsocket FuzzDecodeHello" "$rsocket FuzzEntry" "$rsocket FuzzEnd")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# covered FILE prints the statements that the profile marks as covered.
covered() { awk '$NF > 0 && NR > 1 { print $1 }' "$1" | sort; }

# keep PACKAGE FUZZER keeps the inputs that cover statements outside $work/known, and adds
# these statements to it.
keep() {
	local package=$1 fuzzer=$2 kept=$1/testdata/fuzz/$2 found=0 input name dir
	mkdir -p "$kept" "$work/kept/testdata/fuzz/$fuzzer"
	dir=$("$go" env GOCACHE)/fuzz/$("$go" list "./$package")/$fuzzer
	while read -r input; do
		name=$(basename "$input")
		rm -rf "$work/one" && mkdir -p "$work/one/testdata/fuzz/$fuzzer"
		cp "$input" "$work/one/testdata/fuzz/$fuzzer/"
		(cd "$work/one" && "$work/test" -test.run "^$fuzzer\$/^$name\$" -test.coverprofile="$work/profile" >/dev/null)
		covered "$work/profile" >"$work/adds"
		if [[ $name =~ ^[0-9a-f]{16}$ ]] && [ -z "$(comm -13 "$work/known" "$work/adds")" ]; then
			continue
		fi
		sort -u "$work/known" "$work/adds" -o "$work/known"
		cp "$input" "$work/kept/testdata/fuzz/$fuzzer/"
		found=$((found + 1))
	done < <(find "$kept" "$dir" -type f -printf '%s %p\n' 2>/dev/null | sort -n | cut -d' ' -f2-)
	rm -rf "$kept"
	if [ "$found" -gt 0 ]; then
		cp -r "$work/kept/testdata/fuzz/$fuzzer" "$kept"
	fi
	rmdir "$package/testdata/fuzz" "$package/testdata" 2>/dev/null || true
	echo "$package $fuzzer: $found inputs kept"
}

if [ "${1:-}" = keep ]; then
	last=
	for f in "${fuzzers[@]}"; do
		read -r package fuzzer <<<"$f"
		if [ "$package" != "$last" ]; then
			"$go" test -c -cover -o "$work/test" "./$package"
			mkdir -p "$work/none"
			(cd "$work/none" && "$work/test" -test.run '^Fuzz' -test.coverprofile="$work/profile" >/dev/null)
			covered "$work/profile" >"$work/known"
			last=$package
		fi
		keep "$package" "$fuzzer"
	done
	exit
fi

failed=0
for f in "${fuzzers[@]}"; do
	read -r package fuzzer <<<"$f"
	echo "+ $package $fuzzer for $time"
	"$go" test -run '^$' -fuzz "^$fuzzer\$" -fuzztime "$time" -parallel "$parallel" "./$package" || failed=1
done
echo "statements that the seeds and the kept inputs cover:"
for package in "$transport" "$wire" "$rsocket"; do
	"$go" test -count=1 -run '^Fuzz' -coverprofile="$work/profile" "./$package" >/dev/null || failed=1
	echo "  $package $("$go" tool cover -func="$work/profile" | awk '/^total:/ { print $NF }')"
done
exit "$failed"
