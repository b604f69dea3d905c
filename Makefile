# make run and make test need Go and nothing else; the rest says in ci/install what it needs.
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME ?= 30s
SHORTFUZZ ?= 2s

# Test packages run in folders of their own, so a relative path is made absolute here.
ifdef AGORA_VECTORS
export AGORA_VECTORS := $(abspath $(AGORA_VECTORS))
endif

.PHONY: run test check build fmt fuzz interop faults mutants reproducible sbom perf profile bench-guard
# Threads wait a day here, so that the README can be followed at leisure.
run: build
	@exec bin/agora serve --pending-timeout 24h --active-timeout 24h

build:
	@echo 'Building bin/agora. The first time takes a minute or two.'
	@go build -trimpath -o bin/agora ./cmd/agora

test:
	@echo 'Running every test. That takes some minutes; each package says when it is done.'
	go test ./...

# SQLite's own C code, translated to Go, is compiled without race detection: it is not what these tests look for races in,
# and it runs three times as fast without. Nothing wider than this package: code with sync/atomic types needs detection.
# GORACE: a process with race detection otherwise sleeps a second before it ends, and the tests start hundreds.
RACE = -race -gcflags=modernc.org/sqlite/lib=-race=false

check:
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "run make fmt for: $$unformatted"; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...
	go mod verify
	GORACE=atexit_sleep_ms=10 go test $(RACE) ./...
	$(MAKE) fuzz FUZZTIME=$(SHORTFUZZ)

# Every fuzz target, one after the other, each for FUZZTIME.
fuzz:
	@FUZZTIME=$(FUZZTIME) bash ci/fuzz

# Faults put into a copy of the source, one after the other: does a test notice each? Takes a quarter of an hour.
mutants:
	go run ./ci/mutants

# Two builds in two folders must be the same to the byte.
reproducible:
	bash ci/reproducible

# The bill of materials of bin/agora, CycloneDX JSON.
sbom: build
	go run ./ci/sbom bin/agora > bin/agora.cdx.json

# Clients in other languages against the vectors and a relay; needs what ci/install brings.
interop:
	go run ./testvectors/interop/run -timeout 2m

# Failing system calls and a full disk, for the running binary; needs Linux, strace and the right to mount.
faults:
	go vet -tags faults ./faults
	go test -tags faults -count=1 -timeout 5m -run "^($$(grep -l '^//go:build faults' faults/*_test.go | xargs grep -ho '^func Test\w*' | cut -c6- | paste -sd'|'))$$" ./faults

# Every figure of docs/PERFORMANCE.md and docs/SCALING.md, measured and written there; wants a quiet machine for a quarter
# of an hour. ROWS=post32,deliver measures some, ROWS=none makes tables and graphs of the last results.
perf: build
	go run ./bench/perf -agora bin/agora -rows '$(ROWS)'

# Where the CPU time of a post goes, for docs/PERFORMANCE.md.
profile:
	go run ./bench/perf -profile

# Has a stage become slower, as a ratio to a signature? STRICT=1 fails if so, UPDATE=1 makes this run what is compared with.
ROUNDS ?= 3
bench-guard:
	@STRICT=$(STRICT) go run ./ci/benchguard -rounds $(ROUNDS) $(if $(UPDATE),-update)

fmt:
	gofmt -w .
