# make demo    build the samples, run every pair as two processes, check the data
# make test    install what the tests need where that is possible, run them all
# make check   formatting, vet on every platform, staticcheck
# make bench   benchmarks
# make build   the programs, into bin/

GO ?= go

.PHONY: all build demo test bench check setup clean

all: build

build:
	$(GO) build -o bin/ ./samples/...

demo: build
	@bin/demo

setup:
	@scripts/setup.sh

# The race detector needs cgo and a C compiler; setup installs one where it may.
test: setup
	@if [ "$$($(GO) env CGO_ENABLED)" = 1 ]; then \
		set -x; $(GO) test -race -timeout 14m ./...; \
	else \
		echo "no C compiler (Debian package gcc): the tests run without the race detector"; \
		set -x; $(GO) test -timeout 14m ./...; \
	fi

bench:
	$(GO) test -run '^$$' -bench . ./...
	@if [ -d bench ]; then set -x; $(GO) run ./bench; fi

check:
	@scripts/check.sh

clean:
	rm -rf bin
