#!/usr/bin/env bash
# Runs each test once, with the race detector if there are cgo and a C compiler; setup installs one
# if it may. The long tests run in their short form (testing.Short). With the argument full, for
# make full, they run completely, and so do the module oob/etcd, which takes a minute to build, and
# the simulations with many seeds. make check runs vet. The time limit ends tests that hang.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
tags=${TAGS:-}
full=false
[ "${1:-}" != full ] || full=true
# Without debugging information the linker takes a third less time.
# Two more packages than processors run at a time: about two of them mostly wait.
# With the profile of cmd/verbena, go would build every package again for that program.
flags=(-vet=off -timeout 1h -pgo=off -ldflags "-s -w" -p $(($(getconf _NPROCESSORS_ONLN) + 2)))
$full || flags+=(-short)
if [ "$("$go" env CGO_ENABLED)" = 1 ]; then
	flags+=(-race)
	export GORACE=atexit_sleep_ms=0 # else each program waits for a second at its end
else
	echo "no C compiler (Debian package gcc): the tests run without the race detector"
fi

failed=0
skipped=
log=.build/test.log
mkdir -p .build
: > "$log"
log=$PWD/$log

# gotest runs go test, and keeps what it prints for the summary.
gotest() {
	"$go" test "$@" 2>&1 | tee -a "$log" || failed=1
}

# module tests a module of its own, unless its dependencies cannot be downloaded.
module() {
	if (cd "$1" && "$go" mod download); then
		echo "+ cd $1"
		cd "$1"
		gotest "${flags[@]}" -tags "$tags" ./...
		cd "$OLDPWD"
	elif [ "${CI:-}" = true ]; then
		failed=1
	else
		skipped+=" $1"
	fi
}

# The packages that take longest come first, so that none of them runs alone at the end. Packages
# without tests are programs, which the tests of samples build.
first="./test/rig ./samples ./cgo/libverbena/test ./soft/internal/roce ./rdma ./soft/internal/attack"
packages=$("$go" list -tags "$tags" -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...)
echo "+ $go test ${flags[*]} -tags $tags $first ./..."
gotest "${flags[@]}" -tags "$tags" $first $packages
module bench
module examples/grpc
if $full; then
	tags=${tags:+$tags,}libraries module examples/valkey # go-redis and valkey-go, which take a minute to build
else
	module examples/valkey
fi
module metrics/prometheus
if $full; then
	module oob/etcd
	# Without the race detector, under which they take an hour.
	echo "+ simulations with many seeds"
	gotest -vet=off -pgo=off -timeout 1h -tags "$tags" -run '^Test(Nemesis|ReplicatedLog|ClientsComeAndGo|BothEndsCloseAtOnce)$' \
		./docs ./rdma ./samples/internal/broadcast ./samples/internal/kv ./soft/sim -sim.seeds=1000
	gotest -vet=off -pgo=off -timeout 1h -tags "$tags" -run '^Test(Nemesis|WaitDuringReadsSimulated|HTTP)$' ./rsocket -sim.seeds=100
	gotest -vet=off -pgo=off -timeout 1h -tags "$tags" -run '^Test(Agents|SRDAgents|DeviceFails|SRDDeviceFails|NothingIsStuck|DevicesFailInTurn)$' ./transfer -sim.seeds=200
	gotest -vet=off -pgo=off -timeout 1h -tags "$tags" -run '^TestManyAgents$' ./transfer -sim.seeds=20
	gotest -vet=off -pgo=off -tags "$tags" ./soft/internal/inorder
	cd examples/grpc
	gotest -vet=off -pgo=off -timeout 1h -tags "$tags" -run '^Test(Payments|PlantedFault)$' . -sim.seeds=200
	cd "$OLDPWD"
else
	# short prints the tests that have a short form and match.
	short() {
		find . -name '*_test.go' -not -path './.build/*' -exec awk '
			/^func Test/ { name = $2; sub(/\(.*/, "", name) }
			/testing\.Short\(\)/ && name != "TestRig" && !seen[name]++ { print name }' {} + |
			sort -u | grep "$@" | tr '\n' ' ' | fold -s -w 96 | sed 's/^/    /'
		echo
	}
	cat <<END

Some tests ran in a short form. make full runs whole: the module oob/etcd and the libraries of
examples/valkey, which did not run; the part sanitized of TestRig; all model-based tests, of which
a fifth of the cases ran; and
$(short -v Guest)
make rig runs whole, in the virtual machine:
$(short Guest)
make soak-tests runs for longer what has Soak in its name.
END
fi
[ -z "$skipped" ] || echo "skipped, since modules that they need cannot be downloaded:$skipped" >&2
if [ "$failed" = 1 ]; then
	echo
	echo "What failed (all output: .build/test.log):"
	awk -f scripts/failures.awk "$log"
fi
exit "$failed"
