#!/usr/bin/env bash
# All tests, with the race detector where there is cgo and a C compiler; setup installs
# one where it may. vet is left to make check. The time limit ends what hangs.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
flags=(-vet=off -timeout 1h)
if [ "$("$go" env CGO_ENABLED)" = 1 ]; then
	flags+=(-race)
else
	echo "no C compiler (Debian package gcc): the tests run without the race detector"
fi

# oob/etcd is a module of its own, which takes long to build. internal/rig takes longest,
# and comes first: it is not to wait for a processor.
log=$(mktemp)
etcd=
trap 'rm -f "$log"; [ -z "$etcd" ] || kill "$etcd"' EXIT
(cd oob/etcd && exec nice "$go" test "${flags[@]}" ./...) >"$log" 2>&1 &
etcd=$!

failed=0
(set -x; "$go" test "${flags[@]}" -tags "${TAGS:-}" ./internal/rig ./...) || failed=1
wait "$etcd" || failed=1
etcd=
echo "oob/etcd:"
cat "$log"
exit "$failed"
