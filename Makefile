# make run    build nodens and try it, with nothing else needed
# make test   everything that CI checks before the longer suites
GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
FUZZCOUNT ?= 60000x
IMAGE ?= localhost/nodens:$(VERSION)
ARCHS ?= $(shell $(GO) env GOARCH)

.DEFAULT_GOAL := build
.PHONY: vuln build run image manifest metrics deploy test unit lab lint fuzz tidy-check generate generate-check deps vm kill bench bench-check bench-readme bench-calls path clean help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

build: ## build bin/nodens, a static binary
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/nodens ./cmd/nodens

run: build ## run nodens with its embedded sample; Ctrl-C ends it
	./bin/nodens

test: deps lint unit lab fuzz ## all checks and tests

deps: ## install the Debian packages that the tests use (as root)
	./test/deps.sh

lint: tidy-check generate-check ## gofmt, vet, staticcheck, generated code
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "gofmt: $$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

tidy-check: ## go.mod and go.sum are tidy
	$(GO) mod tidy -diff

generate: ## compile the BPF programs again (clang-14, llvm-14); the result is committed
	$(GO) generate ./bpf

generate-check: ## what is committed is what the BPF sources give
	GO=$(GO) ./bpf/check.sh

unit: ## unit tests, with the race detector
	$(GO) test -race $$($(GO) list ./... | grep -v /test)

lab: ## real clients and servers in network namespaces
	$(GO) test -race -count=1 -timeout 10m ./test/...

fuzz: ## run every fuzz target for FUZZCOUNT inputs
	GO=$(GO) ./test/fuzz.sh $(FUZZCOUNT)

vuln: ## known vulnerabilities in what the code calls (needs vuln.go.dev, or VULN_DB)
	GO=$(GO) ./test/vuln.sh

vm: ## the daemon, netsetup and bpf on Debian's 6.1 kernel, in an emulated machine (as root)
	GO=$(GO) ./test/vm/run.sh

kill: ## kill, stop and replace the daemon under load, ten times each, and print how long look-ups took (as root)
	$(GO) test -count=1 -timeout 20m ./test/kill -v -rounds 10

bench: ## nodens, CoreDNS, unbound, dnsmasq and an echo side by side, in one run
	$(GO) run ./test/bench

bench-check: ## the same, and fail below the goals
	$(GO) run ./test/bench -check

bench-readme: ## the same, and put its summary into README.md
	$(GO) run ./test/bench -readme README.md

bench-calls: ## what redirection costs a connect and a sendmsg, in ns (as root)
	$(GO) test ./bpf -run '^$$' -bench '^Benchmark(SystemCall|Program)$$' -benchtime 0.2s

path: ## the functions and files that one cache hit and one miss run through
	$(GO) build -cover -covermode=atomic -coverpkg=./... -o bin/path ./test/path
	@./bin/path

image: ## build the image IMAGE with buildah, for ARCHS, such as "amd64 arm64"
	GO=$(GO) ./deploy/image.sh $(IMAGE) $(VERSION) $(ARCHS)

manifest: ## render deploy/nodens.yaml from the chart
	cd test/deploy && $(GO) test -count=1 -run '^TestManifest$$' . -update

metrics: ## write docs/metrics.md from the code (as root)
	cd test/deploy && $(GO) test -count=1 -run '^TestMetricsReference$$' . -update

# Without cgo, as Helm is built: what both need is compiled once.
deploy: export CGO_ENABLED = 0
deploy: deps ## check chart, examples, manifest, image, alerts and dashboard (as root)
	cd test/deploy && $(GO) mod tidy -diff && $(GO) vet ./... && $(GO) test -count=1 -timeout 15m .

clean: ## remove what was built
	rm -rf bin
