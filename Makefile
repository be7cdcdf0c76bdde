# make demo     build the samples, run every pair as two processes, check the data
# make test     install what the tests need, where possible, and run all tests, the long ones
#               in a short form
# make full     the tests of make test in full, but for those in the virtual machine, and more seeds
# make check    formatting, vet on every platform, staticcheck, documentation and examples
# make install  the tool, its manual pages and completions, and the library, below PREFIX; make
#               uninstall removes them
# make build    the programs, and the library for other languages, into bin/
# make rig      the tests in the virtual machine with the kernel's RDMA stack; PARTS="rdma dma"
#               chooses
# make fabric   programs and test suites of others by verbena run; writes the table of docs/fabric.md
# make soak     run a server and clients under faults for an hour; SOAK_TIME=10m is shorter
# make bench    benchmarks
# make help     lists all targets

GO ?= go

# The driver for adapters is built if the headers of libibverbs and librdmacm are installed.
TAGS = $(shell [ "`$(GO) env CGO_ENABLED`" = 1 ] && pkg-config --exists libibverbs librdmacm 2>/dev/null && echo verbs)

# The version of programs that are built without git's help names the commit, too.
COMMIT = $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS = -X github.com/verbena-rdma/verbena/internal/version.commit=$(COMMIT)

.PHONY: all build man install uninstall library demo samples test full rig matrix failures windows fabric soak soak-tests attack fuzz bench bench-rig bench-peers bench-scp profile check setup clean help

all: build

# make help prints the text after ##.
help: ## lists all targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1\t\2/p' Makefile | sort | expand -t 14

build: ## the programs, into bin/, and the library for other languages where its headers are
	$(GO) build -tags "$(TAGS)" -ldflags "$(LDFLAGS)" -o bin/ $$($(GO) list ./samples/... ./cmd/... | grep -v /internal/)
	@[ -z "$(TAGS)" ] || $(MAKE) library

man: ## the manual pages, into .build/man
	$(GO) run ./cmd/verbena man .build/man

PREFIX ?= /usr/local

# Also the library for other languages, where its headers are. The samples stay in bin/: their names, such as
# graph, would be those of other programs.
install: ## verbena, manual pages, completions and libraries, below PREFIX (/usr/local); DESTDIR is for packagers
	GO="$(GO)" TAGS="$(TAGS)" LDFLAGS="$(LDFLAGS)" scripts/install.sh "$(DESTDIR)$(PREFIX)"

uninstall: ## removes what make install has put there
	rm -rf -- "$(DESTDIR)$(PREFIX)/bin/verbena" "$(DESTDIR)$(PREFIX)/lib/verbena" \
		"$(DESTDIR)$(PREFIX)/share/man/man1/verbena.1" "$(DESTDIR)$(PREFIX)/share/man/man1/"verbena-*.1 \
		"$(DESTDIR)$(PREFIX)/share/bash-completion/completions/verbena" \
		"$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_verbena" \
		"$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/verbena.fish"

library: ## libverbena.so and libverbena-device.so, for programs in C and other languages, into bin/
	GO="$(GO)" scripts/library.sh bin

# Debugging information and the driver for adapters would double the time.
demo: ## builds the samples, runs every pair as two processes, checks the data
	$(GO) build -ldflags "-s -w" -o .build/demo/ $$($(GO) list ./samples/... | grep -v /internal/)
	@.build/demo/demo

samples: ## the samples, into bin/
	$(GO) build -tags "$(TAGS)" -o bin/ $$($(GO) list ./samples/... | grep -v /internal/)

setup: ## installs what the tests need, where possible
	@scripts/setup.sh
	@scripts/rig-setup.sh

# scripts/test.sh orders the tests. FULL=1 is make full.
test: setup ## all tests, the long ones in a short form
	@$(if $(FULL),scripts/setup.sh full)
	@GO="$(GO)" TAGS="$(TAGS)" scripts/test.sh $(if $(FULL),full)

full: ## the tests of make test in full, but for those in the virtual machine, and more seeds
	@$(MAKE) test FULL=1

# "all", or some of tools files ibverbs rdma dma syncevent samples crosscheck rsocket library verbena matrix
# sanitized removal.
PARTS ?= all

rig: setup ## the tests in the virtual machine, also under AddressSanitizer; PARTS="rdma dma" chooses
	@scripts/setup.sh full
	VERBENA_PARTS="$(PARTS)" $(GO) test -count=1 -tags "$(TAGS)" -timeout 2h -run 'TestRig$$' -v ./test/rig

# All 2,040 cases take 20 minutes; 3 selects cases that cover every combination of three values.
MATRIX ?= all

matrix: setup ## every operation in every combination, in the virtual machine; MATRIX=3 is shorter
	VERBENA_MATRIX=$(MATRIX) VERBENA_MATRIX_FILE=$(CURDIR)/docs/interop.md VERBENA_MATRIX_CASES=$(CURDIR)/.build/matrix.md \
		$(GO) test -count=1 -timeout 5h -run TestRigMatrix -v ./test/matrix

failures: setup ## the errors that each end gets when a connection fails, in the virtual machine; the table goes to .build/failures.md
	VERBENA_FAILURES_FILE=$(CURDIR)/.build/failures.md \
		$(GO) test -count=1 -tags "$(TAGS)" -timeout 30m -run TestRigFailures -v ./cgo/ibverbs

windows: setup ## the result of each request about memory windows, in the virtual machine; the table goes to .build/windows.md
	VERBENA_WINDOWS_FILE=$(CURDIR)/.build/windows.md \
		$(GO) test -count=1 -tags "$(TAGS)" -timeout 30m -run TestRigWindows -v ./cgo/ibverbs

# Results are kept in .build/fabric, so that a run that was ended goes on. ROWS="qemu|ucx.*" runs these suites
# again. CAPTURE=1 keeps a capture of each test that fails.
fabric: setup build ## programs and test suites of others by verbena run, as root; writes the table of docs/fabric.md
	@scripts/setup.sh full
	@scripts/fabric.sh
	VERBENA_FABRIC="$(CURDIR)/.build/fabric/results" VERBENA_FABRIC_ROWS="$(ROWS)" VERBENA_FABRIC_CAPTURE="$(CAPTURE)" \
		$(GO) test -count=1 -timeout 6h -parallel 3 -run 'TestFabric$$' -v ./cgo/libverbena/test
	cd examples/valkey && $(GO) test -count=1 -tags libraries -timeout 30m -v .

SOAK_TIME ?= 1h

# SOAK_SEED repeats a run as closely as possible. Each run prints its seed.
SOAK_SEED ?= 0

soak: ## a server and clients that come, go, are killed and stopped, under faults; SOAK_TIME=10m is shorter
	$(GO) build -o .build/soak ./test/soak/cmd
	.build/soak -time $(SOAK_TIME) -seed $(SOAK_SEED)

# Tests whose names contain Soak. Package test/soak explains the factor SOAK.
SOAK ?= 1

soak-tests: setup ## the tests that find more the longer they run; SOAK=10 is longer
	VERBENA_SOAK=$(SOAK) $(GO) test -race -count=1 -p 1 -tags "$(TAGS)" -timeout 72h -run Soak -v ./...

ATTACK ?= 10s
ROWS ?= .

# Without the race detector, which would also slow the attacker down.
attack: setup ## the attacks on the software device, as a table; ATTACK=1m is longer, ROWS=one_host/forged chooses; as root, also from other hosts
	VERBENA_ATTACK=$(ATTACK) $(GO) test -count=1 -timeout 24h -run 'TestAttacks/$(ROWS)' -v ./soft/internal/attack

# Afterwards, scripts/fuzz.sh keep selects the inputs worth keeping.
FUZZTIME ?= 1m

fuzz: ## fuzzes what receives packets, each fuzzer for FUZZTIME (1m); shows the coverage
	@GO="$(GO)" FUZZTIME="$(FUZZTIME)" scripts/fuzz.sh

bench: ## benchmarks
	$(GO) test -run '^$$' -bench . ./...
	cd bench && $(GO) run . scale && $(GO) run . srd

ROUNDS ?= 5

bench-rig: setup ## the SDK beside perftest, in the virtual machine, as a table
	$(GO) build -tags "$(TAGS)" -o .build/rig/ ./cmd/verbena && cd bench && $(GO) build -tags "$(TAGS)" -o ../.build/rig/ .
	echo "bench peers -v -scene adapter,local -rounds $(ROUNDS) -verbena verbena" | scripts/rig -mtu 9000 -timeout 1h -file .build/rig/verbena -file .build/rig/bench -

# Run it as root to measure in network namespaces too.
bench-peers: ## the SDK beside UCX and libfabric: tables, and the plots of docs/performance.md
	@scripts/setup.sh
	@GO="$(GO)" TAGS="$(TAGS)" ROUNDS=$(ROUNDS) scripts/bench-peers.sh

profile: ## cmd/verbena/default.pgo, the profile with which verbena is built
	@GO="$(GO)" scripts/profile.sh

bench-scp: ## verbena send beside scp, 2 GiB over the loopback interface, as a table
	@scripts/setup.sh scp
	cd bench && $(GO) run . peers -v -scene files -rounds $(ROUNDS)

check: ## formatting, vet on every platform, staticcheck, documentation and examples
	@scripts/check.sh

clean: ## removes what was built
	rm -rf bin .build
