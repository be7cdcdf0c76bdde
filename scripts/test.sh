#!/usr/bin/env bash
# Runs all tests, with the race detector if there are cgo and a C compiler; setup installs one
# if it may. In make test the long tests run in their short form (testing.Short). With the
# argument full, for make full, they run completely, except those in the virtual machine, which
# make rig runs, and including those of oob/etcd, which take a minute to build. make check runs
# vet. The time limit ends tests that hang.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
tags=${TAGS:-}
# Without debugging information the linker takes a third less time.
# Two more packages than processors run at a time: about two of them mostly wait.
# With the profile of cmd/verbena, go would build every package again for that program.
flags=(-vet=off -timeout 1h -pgo=off -ldflags "-s -w" -p $(($(getconf _NPROCESSORS_ONLN) + 2)))
if [ "$("$go" env CGO_ENABLED)" = 1 ]; then
	flags+=(-race)
else
	echo "no C compiler (Debian package gcc): the tests run without the race detector"
fi

failed=0

# module tests a module of its own, unless its dependencies cannot be downloaded.
module() {
	if (cd "$1" && "$go" mod download); then
		(set -x; cd "$1"; "$go" test "${flags[@]}" ./...) || failed=1
	elif [ "${CI:-}" = true ]; then
		failed=1
	else
		skipped+=" $1"
	fi
}
skipped=

# report says which modules were skipped, and ends the script.
report() {
	[ -z "$skipped" ] || echo "skipped, since modules that they need cannot be downloaded:$skipped" >&2
	exit "$failed"
}

if [ "${1:-}" = full ]; then
	(set -x; "$go" test "${flags[@]}" -tags "$tags" -skip '^TestRig$' ./...) || failed=1
	module examples/grpc
	module oob/etcd
	# Under the race detector, a thousand seeds take an hour.
	(set -x; "$go" test -vet=off -pgo=off -timeout 1h -tags "$tags" -run '^Test(Nemesis|ReplicatedLog|ClientsComeAndGo|WaitDuringReadsSimulated|BothEndsCloseAtOnce)$' \
		./docs ./rdma ./rsocket ./samples/internal/broadcast ./samples/internal/kv ./soft/sim -sim.seeds=1000) || failed=1
	report
fi

# Packages without tests are programs, which the tests of samples build. The packages that take
# longest come first, so that none of them runs alone at the end.
packages=$("$go" list -tags "$tags" -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...)
echo "+ $go test -short ${flags[*]} -tags $tags ./test/rig ./samples ./..."
"$go" test -short "${flags[@]}" -tags "$tags" ./test/rig ./samples $packages || failed=1
module examples/grpc

# short prints the tests that have a short form and match.
short() {
	find . -name '*_test.go' -not -path './.build/*' -exec awk '
		/^func Test/ { name = $2; sub(/\(.*/, "", name) }
		/testing\.Short\(\)/ && name != "TestRig" && !seen[name]++ { print name }' {} + |
		sort -u | grep "$@" | tr '\n' ' ' | fold -s -w 96 | sed 's/^/    /'
	echo
}
cat <<END

Some tests ran in a short form. make full runs whole: the module oob/etcd, which did not
run; all model-based tests, of which a fifth of the cases ran; and
$(short -v Guest)
make rig runs whole, in the virtual machine: its part sanitized, which did not run; and
$(short Guest)
make soak-tests runs for longer what has Soak in its name.
END
report
