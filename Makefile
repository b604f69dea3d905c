# make run and make test need only Go. ci/install installs what the other targets need.
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@v1.9.0
WYCHEPROOF = github.com/c2sp/wycheproof@v0.0.0-20260902155932-3fa63dd0344a
FUZZTIME ?= 30s

# go test runs each package in the package's own folder, so a relative path is made absolute here.
ifdef AGORA_VECTORS
export AGORA_VECTORS := $(abspath $(AGORA_VECTORS))
endif

# cmd/agora/default.pgo makes the program faster, but go test would compile all packages once more for it.
GOFLAGS_SET := $(shell go env GOFLAGS)
lint fuzz interop mutants: export GOFLAGS := $(GOFLAGS_SET) -pgo=off
# make lint vets everything. By itself, go test would vet all packages again, and also analyze all dependencies again.
# Without a symbol table, the programs of the tests are linked in two thirds of the time.
test check race postgres js python faults simulate witness a2a cluster operations install-test: export GOFLAGS := $(GOFLAGS_SET) -pgo=off -vet=off -ldflags=-s

.PHONY: run test check lint race postgres build fmt fuzz interop js python packages page faults simulate witness a2a cluster operations nightly mutants reproducible sbom perf profile pgo bench-guard bench-log deb rpm release install-test
# The timeouts of threads are one day here, so that no thread ends while you follow the README.
run: build
	@exec bin/agora serve --demo --pending-timeout 24h --active-timeout 24h

BUILD_FLAGS ?= -trimpath
build:
	@echo 'Building bin/agora. The first time takes a minute or two.'
	@go build $(BUILD_FLAGS) -o bin/agora ./cmd/agora

# -short: what a test repeats, it repeats less often. make nightly runs all tests without it. -p 3: three packages run at
# a time, and six tests of each, because some of them mostly wait. Those that take longest start first. -timeout: a busy
# machine needs longer.
TEST = go test -short -p 3 -parallel 6 -timeout 20m
test:
	@echo 'Running all tests. This takes some minutes. A line is printed when a package is finished.'
	$(TEST) ./ci/recipes ./cmd/agora ./conformance ./ci/faults ./gateway/... ./relay/... ./store/... ./...

# A change must pass this, and also make interop, make js, make python, make packages, make page,
# make faults, make cluster, make simulate, make witness, make a2a and make sbom. .ci/run runs them all.
check: lint test postgres race
	@echo 'make check: all passed'

# TAGS are the build tags of the tests that need more than Go.
TAGS = postgres,javascript,python,faults,operations,packages,cluster,witness,a2a

# Runs the checks that need no tests, the fastest first. If the vulnerability database cannot be reached,
# ci/vulnerabilities prints that and passes. GOGC saves staticcheck a quarter of its time, and needs 4 GB.
lint:
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "run make fmt for: $$unformatted"; exit 1; }
	go vet -tags $(TAGS) ./...
	GOGC=400 go run $(STATICCHECK) -tags $(TAGS) ./...
	bash ci/vulnerabilities vuln.go.dev go run $(GOVULNCHECK)

# Runs with race detection the tests of the relay, the gateways and the client in which goroutines meet. make nightly
# runs all tests of all packages that start goroutines, and whole programs.
race:
	bash ci/race

# Runs the tests that need PostgreSQL 15 and PgBouncer, and with PostgreSQL the tests of the relay, of one gateway and of
# what all gateways share, see store/storetest/engine. PACKAGES=./gateway/jobs runs only those. make nightly runs
# ./gateway/....
PACKAGES ?= ./store/postgres ./gateway/hub ./relay/httpapi ./relay ./gateway ./gateway/deliver ./store/transfer
tests_with = ^($$(grep -l '^//go:build $(1)' $(2)/*_test.go | xargs grep -ho '^func Test\w*' | cut -c6- | paste -sd'|'))$$
# The tests of the store end sessions of their server, so no other tests use it.
OF_STORES = $(filter ./store/%,$(PACKAGES))
SUITES = $(filter-out ./store/%,$(PACKAGES))
postgres:
	$(if $(OF_STORES),bash ci/postgres $(TEST) $(OF_STORES))
	$(if $(SUITES),AGORA_TEST_STORE=postgres bash ci/postgres $(TEST) $(SUITES))
	bash ci/postgres $(TEST) -run "$(call tests_with,postgres,cmd/agora)" ./cmd/agora

# Runs three nodes over three PostgreSQL servers, ends and separates them, and checks that no message is lost. Also does
# what docs/CLUSTER.md says about a lost primary. Takes a minute, half of it on the CPU. Needs PostgreSQL 15.
cluster:
	go test -tags cluster -short -count=1 -timeout 10m ./ci/faults/cluster

# Runs what takes long: some hours. Do so before you call a larger change finished.
nightly:
	bash ci/nightly

# Runs all fuzz targets, one after the other, each for FUZZTIME.
fuzz:
	@FUZZTIME=$(FUZZTIME) bash ci/fuzz

# Puts faults into a copy of the source, and checks that a test fails for each. Takes an hour or so.
mutants:
	go run ./ci/mutants

# Builds the program twice, in two folders, and checks that both programs are identical.
reproducible:
	bash ci/reproducible

# Writes the bill of materials of bin/agora as CycloneDX JSON.
sbom: build
	go run ./ci/sbom bin/agora > bin/agora.cdx.json

# These build packages for this machine's architecture into dist. The first time, nfpm is compiled, too.
deb:
	$(PACKAGE)
rpm:
	$(PACKAGE)
PACKAGE = go run ./ci/release -build-flags '$(BUILD_FLAGS)' -formats $@ -targets linux/$$(go env GOARCH)

# Builds into dist what a release consists of: archives, packages, bills of materials and checksums, for all platforms.
# Also vets the code for each operating system. Takes some minutes for each platform. SIGN=FILE signs the checksums with
# that private key of SSH.
release:
	for system in linux darwin windows; do CGO_ENABLED=0 GOOS=$$system go vet -trimpath ./... || exit 1; done
	go run ./ci/release $(if $(SIGN),-sign '$(SIGN)')

# Installs the packages in a copy of this system, with systemd as its first process, as docs/INSTALL.md says. Needs
# Debian, root and what ci/install packages installs.
install-test:
	go test -tags packages -count=1 -timeout 30m ./ci/release

# Tests the clients in other languages with the test vectors and a relay. Needs the packages that ci/install installs.
interop:
	go run ./testvectors/interop/run -timeout 6m

# Tests the JavaScript package and its type declarations, with clients in JavaScript the tools of channels and of agora
# mcp, and follows the recipes of the docs in JavaScript. Needs Node, and the packages that ci/install installs. The
# vectors of Wycheproof are in a Go module. It is only downloaded: no program imports it. The files mostly wait, so three
# run at a time.
js: build
	AGORA_WYCHEPROOF="$$(go mod download -json $(WYCHEPROOF) | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')" \
		node --test --test-concurrency=3 sdk/js/test/*.test.js
	sdk/js/node_modules/.bin/tsc -p sdk/js/test
	go test -tags javascript -count=1 -run JavaScript ./gateway/channel ./cmd/agora ./ci/recipes

# Tests the Python package, checks its types with mypy, and follows the recipes of the docs in Python. Needs the packages
# that ci/install installs.
python: build
	AGORA_BINARY=$(abspath bin/agora) PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -m unittest discover -s sdk/python/tests -t sdk/python
	mypy --config-file sdk/python/pyproject.toml sdk/python/src
	go test -tags python -count=1 -run Python ./ci/recipes

# Builds the npm package and the Python wheel into bin/packages, installs both into empty projects, and runs the
# programs of their READMEs there.
packages: build
	bash ci/packages

# Tests the web page in headless Chromium. Needs what ci/install installs. SCREENSHOTS=1 also makes the pictures of the
# docs again. Two files of tests run at a time.
page: build
	SCREENSHOTS=$(SCREENSHOTS) node --test --test-concurrency=2 cmd/agora/internal/explorer/test/*.test.mjs

# Tests the running binary with failing system calls and a full disk. Needs Linux, strace and permission to mount.
faults:
	go test -tags faults -count=1 -timeout 5m -run "$(call tests_with,faults,ci/faults)" ./ci/faults

# Simulates 100 whole systems, in two processes, because each uses one core. A failing seed is printed. make nightly
# simulates more.
simulate:
	go test -c -o bin/sim.test ./ci/sim
	cd ci/sim && printf '%s\n' 1 51 | xargs -P 2 -I SEED ../../bin/sim.test -test.run TestSystems -systems 50 -seed SEED

# Tests the relay's log with a witness and with clients that others have written. They come from the Go module proxy.
witness:
	go -C ci/torchwood vet ./...
	go test -tags witness -count=1 -timeout 5m -run "$(call tests_with,witness,ci/faults)" ./ci/faults

# Tests A2A endpoints with the clients and the servers of the A2A project for Go and JavaScript, and while relay and agent
# are killed. Needs Node, and the packages that ci/install installs.
a2a:
	go -C ci/a2a vet ./...
	go test -tags a2a -count=1 -timeout 5m -run "$(call tests_with,a2a,ci/faults)" ./ci/faults

# Runs a relay as docs/OPERATING.md says, with an ACME certificate authority, nginx, Caddy, Prometheus and systemd. Needs
# what ci/install operations installs.
operations:
	go -C ci/acme vet ./...
	go test -tags operations -count=1 -timeout 15m ./ci/operations ./relay/metrics

# Measures the tables and graphs of docs/PERFORMANCE.md and docs/SCALING.md and writes them there. Use an idle machine.
# Takes 15 minutes. ROWS=post32,deliver runs only these measurements. ROWS=none measures nothing and makes the tables
# and graphs again from the last results.
perf: build
	go run ./ci/perf -agora bin/agora -rows '$(ROWS)'

# Measures what a log of proofs costs, in turns with a relay without one. Fails if it costs more than it may. Takes a
# minute or two.
bench-log: build
	go run ./ci/perf -agora bin/agora -log

# Measures how the CPU time of a post is divided among its stages, for docs/PERFORMANCE.md.
profile:
	go run ./ci/perf -profile

# Measures which functions of the relay are busy and writes cmd/agora/default.pgo, with which go build optimizes them.
# Run it after larger changes of these functions.
pgo:
	go run ./ci/perf -pgo

# Checks whether a stage has become slower, relative to the verification of a signature. STRICT=1 fails if one has.
# UPDATE=1 makes the results of this run the new baseline.
ROUNDS ?= 3
bench-guard:
	@STRICT=$(STRICT) go run ./ci/benchguard -rounds $(ROUNDS) $(if $(UPDATE),-update)

fmt:
	gofmt -w .
