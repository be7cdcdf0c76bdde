#!/usr/bin/env bash
# Checks formatting, vet and builds on every platform, staticcheck, and the documentation:
# comments on everything exported, examples, links, and that quoted code is that of tests.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}

unformatted=$(gofmt -l .)
if [ -n "$unformatted" ]; then
	echo "not formatted, run gofmt -w on:" $unformatted >&2
	exit 1
fi

run() {
	echo "$*"
	env "$@"
}

# vet and list -export compile, and link nothing. The tests are not for Windows.
run CGO_ENABLED=0 "$go" vet ./...
run CGO_ENABLED=0 GOOS=darwin "$go" vet ./...
run CGO_ENABLED=0 GOARCH=386 "$go" vet ./...
run CGO_ENABLED=0 GOOS=windows "$go" list -export -f '{{with .Error}}{{.}}{{end}}' ./...
staticcheck=$(cd tools && "$go" tool -n staticcheck) # a module of its own
run "$staticcheck" ./...
if [ "$("$go" env CGO_ENABLED)" = 1 ] && pkg-config --exists libibverbs librdmacm 2>/dev/null; then
	run CGO_ENABLED=1 "$go" vet -tags verbs ./...
	run "$staticcheck" -tags verbs ./cgo/... ./device/...
else
	echo "skipped: vet with cgo and the driver for adapters (Debian packages gcc, libibverbs-dev, librdmacm-dev, pkg-config)"
fi
run "$go" test -vet=off ./docs

# These are modules of their own.
for module in bench oob/etcd examples/grpc examples/valkey metrics/prometheus; do
	(
		cd "$module"
		run "$go" vet ./...
		[ $module != bench ] || run CGO_ENABLED=0 GOOS=darwin "$go" vet ./...
		run "$staticcheck" ./...
	)
done
