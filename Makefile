# make run    build nodens and try it, with nothing else needed
# make test   all checks and tests, except the long suites of .ci/run
GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
FUZZCOUNT ?= 60000x
# How often a failed test is repeated. The summary still lists the failure.
RERUNS ?= 0
GOTESTSUM = $(GO) run gotest.tools/gotestsum@v1.13.0 --format pkgname --hide-summary=skipped --rerun-fails=$(RERUNS)
# The version of Cilium that make cilium runs.
CILIUM ?= 1.18.2
IMAGE ?= localhost/nodens:$(VERSION)
ARCHS ?= $(shell $(GO) env GOARCH)

.DEFAULT_GOAL := build
.PHONY: vuln build run image release actionlint manifest metrics deploy plugin test unit lab lint fuzz tidy-check generate generate-check deps vm vm-kernels cluster cluster-all cluster-ci cluster-up cluster-down e2e cilium kill outage bench bench-check bench-readme pictures dashboard bench-calls fastpath-long path clean help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

build: ## build bin/nodens, a static binary
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/nodens ./cmd/nodens

run: build ## run nodens with its embedded sample; Ctrl-C stops it
	./bin/nodens

test: deps lint unit lab fuzz ## all checks and tests
	@echo "make test: lint, unit tests, lab tests and fuzz targets passed"

deps: ## install the Debian packages that the tests use (as root)
	./test/deps.sh

lint: tidy-check generate-check ## gofmt, vet, staticcheck, generated code, commit subject
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "gofmt: $$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	@git log -1 --format=%s 2>/dev/null | awk '!/^(Merge|Revert) / && length > 72 { print "commit subject has more than 72 characters: " $$0; exit 1 }'

tidy-check: ## go.mod and go.sum are tidy
	$(GO) mod tidy -diff

generate: ## compile the BPF programs (clang-14, llvm-14); commit the result
	$(GO) generate ./bpf

generate-check: ## the committed BPF objects match their sources
	GO=$(GO) ./bpf/check.sh

unit: ## unit tests with the race detector
	$(GOTESTSUM) --packages "$$($(GO) list ./... | grep -v /test | tr '\n' ' ')" -- -race

lab: ## test with real clients and servers in network namespaces
	$(GOTESTSUM) --packages ./test/... -- -race -count=1 -timeout 20m

fuzz: ## run every fuzz target for FUZZCOUNT inputs
	GO=$(GO) ./test/fuzz.sh $(FUZZCOUNT)

vuln: ## check for known vulnerabilities in code that is called (needs vuln.go.dev, or VULN_DB)
	GO=$(GO) ./test/vuln.sh

debootstrap: ## run the commands of README.md on a fresh Debian (as root)
	GO=$(GO) ./test/debootstrap.sh

vm: ## test the daemon, netsetup and bpf on Debian's 6.1 kernel in an emulated machine (as root)
	GO=$(GO) ./test/vm/run.sh

cluster: ## test nodens in a Kubernetes cluster of two emulated nodes (as root; compiles for 15 CPU minutes the first time)
	./test/cluster/test.sh

cluster-all: ## test it in every configuration, as before a release (as root)
	for c in full resilient minimal ipv6 kernel; do CONFIG=$$c ./test/cluster/test.sh || exit; done

cluster-ci: ## run the cluster tests that CI runs, and Kubernetes' own DNS tests that are not serial (as root)
	E2E=yes E2E_TIMEOUT=20m PROCS=2 ./test/cluster/test.sh -test.run '^Test(Names|Rights|Pods|Drills)$$' -test.timeout 15m -drill 'nothing|deletion'

cluster-up: ## start that cluster and leave it; test/cluster/kubectl points at it
	./test/cluster/build.sh
	./test/cluster/down.sh
	./test/cluster/up.sh --set tier=full --set redirect.mode=on

cluster-down: ## end it
	./test/cluster/down.sh

e2e: ## run Kubernetes' own end-to-end DNS tests in such clusters (as root)
	./test/cluster/e2e.sh

cilium: ## test nodens beside a real Cilium agent (as root; 15 minutes more the first time)
	GO=$(GO) ./test/cilium/build.sh $(CILIUM)
	$(GO) test -count=1 -timeout 20m ./test/cilium -v -cilium $(CILIUM)

vm-kernels: ## test redirection and bpf on Debian's kernels 5.10 and 6.12 in an emulated machine (as root)
	GO=$(GO) ./test/vm/run.sh bpf linux-image-cloud-amd64 bullseye
	GO=$(GO) ./test/vm/run.sh bpf linux-image-6.12-cloud-amd64

kill: ## kill, stop and replace the daemon under load, ten times each, and print the lookup times (as root)
	$(GOTESTSUM) --format standard-verbose --packages ./test/kill -- -count=1 -timeout 30m -args -rounds 10

outage: ## let the upstream die and slow down under load in a memory limit, beside CoreDNS and unbound, and print a table: 45 minutes on a quiet machine (as root)
	$(GO) test -count=1 -timeout 55m ./test/outage -v -args -full -peers

bench: ## compare nodens with CoreDNS, unbound, dnsmasq and an echo, in one run
	$(GO) run ./test/bench
	$(GO) test ./test/fastpath -v -count=1 -run 'TestVeth$$' -rounds 5
	$(GO) test ./test/kill -v -count=1 -run 'TestIdle$$' -idle 1m

bench-check: ## run bench and fail below the goals
	$(GO) run ./test/bench -check
	$(GO) test ./test/fastpath -v -count=1 -run 'TestVeth$$' -rounds 5 -goals
	$(GO) test ./test/kill -v -count=1 -run 'TestIdle$$' -idle 1m -goals

bench-readme: ## measure what README.md shows, and draw its pictures (as root)
	$(GO) run ./test/bench -readme docs/pictures/bench.md
	$(GO) test -count=1 ./test/outage -v -peers -drill dead -length 8s | grep -oE '[a-z]+ +hits +[0-9.]+%.*' >docs/pictures/outage.txt
	$(MAKE) --silent pictures

pictures: ## draw the pictures of README.md from the last figures
	$(GO) run ./test/plots docs/pictures/bench.md docs/pictures/outage.txt docs/pictures

dashboard: ## draw the picture of the Grafana dashboard (as root; 10 minutes)
	GO=$(GO) ./test/dashboard/draw.sh

bench-calls: ## measure the cost of redirection per connect and sendmsg, in ns (as root)
	$(GO) test ./bpf -run '^$$' -bench '^Benchmark(SystemCall|Program)$$' -benchtime 0.2s

fastpath-long: ## 10 million random packets for the fast path, and what a hash map does in its place (as root)
	NODENS_FASTPATH_FUZZ=10000000 NODENS_CHURN_HASH=1 $(GO) test ./bpf -v -count=1 -timeout 2h -run '^(TestFastpathFuzz|TestHashMapChurn)$$'

path: ## print the functions and files of a cache hit and a miss; fail above the limits
	$(GO) build -cover -covermode=atomic -coverpkg=./... -o bin/path ./test/path
	@./bin/path

image: ## build the image IMAGE with buildah for ARCHS, such as "amd64 arm64"
	GO=$(GO) ./deploy/image.sh $(IMAGE) $(VERSION) $(ARCHS)

release: ## make dist/: binaries, image, chart, SBOM and checksums; the same commit gives the same bytes
	GO=$(GO) ./deploy/release.sh $(VERSION)

actionlint: ## check the workflows
	cd .github && $(GO) tool actionlint workflows/*.yml

manifest: ## render deploy/nodens.yaml and nodens-cilium.yaml from the chart
	cd test/deploy && $(GO) test -count=1 -run '^TestManifest$$' . -update

metrics: ## write docs/metrics.md from the code (as root)
	cd test/deploy && $(GO) test -count=1 -run '^TestMetricsReference$$' . -update

# Without cgo, like Helm, so that packages that both use are compiled once.
deploy: export CGO_ENABLED = 0
deploy: deps actionlint plugin ## test chart, examples, manifest, image, alerts and dashboard (as root)
	cd test/deploy && $(GO) mod tidy -diff && $(GO) vet ./... && $(GO) test -count=1 -timeout 20m .

plugin: export CGO_ENABLED = 0
plugin: ## check and test the kubectl plugin, a separate Go module
	staticcheck=$$($(GO) tool -n staticcheck) && cd cmd/kubectl-nodens && $(GO) mod tidy -diff && $(GO) vet ./... && "$$staticcheck" ./... && $(GO) test -count=1 ./...

clean: ## remove build results
	rm -rf bin dist
