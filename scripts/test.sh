#!/usr/bin/env bash
# All tests, with the race detector where there is cgo and a C compiler; setup installs
# one where it may. In make test the long ones run in their short form (testing.Short).
# With the word full, for make full, they run whole, but for those in the virtual machine,
# which make rig runs, and with those of oob/etcd, which take a minute to build. vet is
# left to make check. The time limit ends what hangs.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
tags=${TAGS:-}
# Debugging information takes a third of the linker's time.
# Two of the packages at work wait more than they compute.
# A profile to optimize by would have every package built once more, for cmd/verbena.
flags=(-vet=off -timeout 1h -pgo=off -ldflags "-s -w" -p $(($(getconf _NPROCESSORS_ONLN) + 2)))
if [ "$("$go" env CGO_ENABLED)" = 1 ]; then
	flags+=(-race)
else
	echo "no C compiler (Debian package gcc): the tests run without the race detector"
fi

failed=0
if [ "${1:-}" = full ]; then
	(set -x; "$go" test "${flags[@]}" -tags "$tags" -skip '^TestRig$' ./...) || failed=1
	(set -x; cd oob/etcd; "$go" test "${flags[@]}" ./...) || failed=1
	exit "$failed"
fi

# Packages without tests are programs, which the tests of samples build. Those that take
# longest come first: they are not to run alone at the end.
packages=$("$go" list -tags "$tags" -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...)
echo "+ $go test -short ${flags[*]} -tags $tags ./test/rig ./samples ./..."
"$go" test -short "${flags[@]}" -tags "$tags" ./test/rig ./samples $packages || failed=1

# short prints the tests that ask for the short form, and match.
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
exit "$failed"
