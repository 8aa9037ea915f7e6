# byre is pure Go. With cgo off everywhere but under the race detector, the
# program is static and one build cache serves build, lint and tests alike,
# whether a C compiler is there or not.
export CGO_ENABLED ?= 0
# As Kubernetes' own build: without the pages of golang.org/x/net/trace, whose templates would have
# the linker keep all methods of all types (26 MB; docs/decisions/0031-dead-code.md).
export GOFLAGS := $(filter-out -tags=grpcnotrace,$(GOFLAGS)) -tags=grpcnotrace

GO       ?= go
DATA_DIR ?= ./byre-data
# How long `make fuzz` runs each target.
FUZZTIME ?= 1m
BENCH    ?=

# What these packages promise is about concurrency, so their short tests run under the race detector too.
# `make night` runs all tests of all packages so: Kubernetes is then built a second time.
RACE_PKGS := ./migrations/... ./sqlstore/... ./watch/...

.PHONY: all build run kubectl controller-runtime apiextensions etcd-storage conformance dist dist-check deb rpm image packages-test alerts-test machines-test test test-short test-setup test-postgres-versions test-race test-race-all test-unit test-e2e oracle lint fmt-check tidy-check vulncheck outdated night transfer litestream bench shards model robustness failover growth robustness-faults robustness-power fuzz findings clean

all: build

build:
	$(GO) build -o bin/byre ./cmd/byre

# The first build compiles all of Kubernetes. Go prints nothing meanwhile, so this rule prints
# a line every 15 seconds.
run:
	@if [ ! -x bin/byre ]; then \
	  echo "Building bin/byre. The first build compiles Kubernetes and takes some minutes, later ones seconds."; \
	  (while sleep 15; do passed=$$((passed + 15)); echo "still building, $$passed s"; done) & \
	  trap "kill $$!" EXIT; \
	fi; $(MAKE) --no-print-directory build
	exec bin/byre serve --data-dir $(DATA_DIR)

# The tests run without go vet, which `make lint` contains, and are linked without debug information: most of
# the time of a short package is the linker's. Their files lie in memory where there is enough of it.
TEST := env $$($(CURDIR)/.ci/memory) $(GO) test -vet=off -ldflags='-s -w'

# What .ci/run tests: at most some 15 minutes on two processors. What needs longer, or an idle machine, is
# skipped here and runs where BYRE_NIGHT is set. The steps run one after the other: beside each other they end no
# sooner, and servers of PostgreSQL starve.
test: test-setup build
	@.ci/step "tests under the race detector" $(MAKE) --no-print-directory test-race
	@.ci/step "unit tests" $(MAKE) --no-print-directory test-unit
	@.ci/step "end-to-end tests" $(MAKE) --no-print-directory test-e2e

# All that is too long for `make test`, in at most four hours: .ci/night has the suites. SUITES is a list of
# regular expressions of their names; DOCS=docs writes the table into docs/reliability.md.
SUITES ?=
night:
	@DOCS='$(DOCS)' .ci/night $(SUITES)

# The tests of the store on each major version of PostgreSQL that byre supports, but for
# those of standbys and of pg_dump, whose programs the versions' packages lack. Those of the
# documentation use the psql of this machine. VERSIONS chooses among them.
VERSIONS ?= 13 14 15 16 17 18
POSTGRES_TESTS := TestDriver|TestSnapshots|TestSchemas|TestRole|TestHints|TestWriters|TestLostCommits|TestRetention|TestRead|TestCommit|TestAdopt|TestPlan|TestExplain|TestPooler
test-postgres-versions:
	@for v in $(VERSIONS); do \
	  bin=$$(.ci/postgres $$v) || exit 1; echo "== PostgreSQL $$v"; \
	  PATH="$$bin:$$PATH" $(GO) test -count=1 -timeout 15m ./sqlstore/postgres -run '$(POSTGRES_TESTS)' -skip TestSchemas_AreDumpedDroppedAndRestoredAlone || exit 1; \
	  PATH="$$bin:$$PATH" $(GO) test -count=1 -timeout 15m ./sqlstore -run 'TestDoc_|TestDocs_' || exit 1; \
	done

# Finds PostgreSQL's server programs and a C compiler for the race detector, and
# installs them when it runs as root.
test-setup:
	@.ci/setup

test-race: test-setup
	CGO_ENABLED=1 $(TEST) -race -short -timeout 40m $(RACE_PKGS)

# Most tests of cmd/byre wait for servers most of the time: six at once, however few processors there are.
test-unit: test-setup
	$(TEST) -parallel 6 -timeout 40m ./...

# Tests of less than a second, without PostgreSQL and without starting byre, to run while you
# write. Linking takes most of the time, so the test binaries have no debug information.
test-short:
	$(GO) test -short -ldflags='-s -w' $$($(GO) list ./...)

# The packages of e2e whose tests run what they test in their own process. Left out are those
# that start servers or kill processes, which are programs built without the race detector.
RACE_E2E_PKGS := ./bench ./document ./robustness/check ./robustness/inprocess ./robustness/power ./robustness/tables ./robustness/vfs

# Every package under the race detector, for the night: Kubernetes is built a second
# time, and what waits for the processor takes several times as long. Servers that tests of
# cmd/byre start run under it too.
test-race-all: test-setup
	CGO_ENABLED=1 $(GO) test -race -p 1 -timeout 60m ./...
	cd e2e && CGO_ENABLED=1 $(GO) test -count=1 -race -p 1 -timeout 60m $(RACE_E2E_PKGS)

# The end-to-end tests build kubectl, kube-apiserver and etcd from their modules
# into bin/e2e. One package at a time: each starts servers. Several tests at a time,
# however few processors there are: most of them wait most of the time. Never from the
# test cache: it doesn't know the program that these tests start. With BYRE_NIGHT all packages
# run, and all tests of them.
E2E_PKGS = $(if $(BYRE_NIGHT),./...,. ./bench ./console ./document ./etcd ./failover/... ./oracle ./packages/... ./robustness/check ./robustness/inprocess ./robustness/power ./robustness/tables ./robustness/vfs)
test-e2e: test-setup build
	cd e2e && $(TEST) -count=1 -p 1 -parallel 8 -timeout 60m $(E2E_PKGS)

# Compares byre with a stock kube-apiserver, on both databases. EMULATED is the release that both
# servers emulate, as in 1.36; their own where empty.
EMULATED ?=
oracle: test-setup build
	cd e2e && $(TEST) -count=1 -parallel 8 -timeout 60m ./oracle -run TestAnswers_EqualStock -args -emulated '$(EMULATED)'

fmt-check:
	@out=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); \
	if [ -n "$$out" ]; then echo "not formatted by gofmt:"; echo "$$out"; exit 1; fi

# The go.mod and go.sum of each module list what is imported, no more and no less.
tidy-check:
	@for module in $$(git ls-files go.mod '*/go.mod'); do \
	  (cd "$$(dirname "$$module")" && $(GO) mod tidy -diff) || exit 1; \
	done

# Known vulnerabilities that our code reaches. It downloads their list from
# vuln.go.dev, so it is not part of .ci/run, which needs no network.
GOVULNCHECK := bin/tools/govulncheck-1.9.0

$(GOVULNCHECK):
	GOBIN=$(CURDIR)/bin/tools $(GO) install golang.org/x/vuln/cmd/govulncheck@v1.9.0
	mv bin/tools/govulncheck $@

vulncheck: $(GOVULNCHECK)
	$(GOVULNCHECK) ./...

outdated:
	.ci/outdated

GOLANGCI := bin/tools/golangci-lint-2.12.2
$(GOLANGCI):
	GOBIN=$(CURDIR)/bin/tools $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.12.2
	mv bin/tools/golangci-lint $@

lint: $(GOLANGCI)
	.ci/lint $(GOLANGCI)

# controller-runtime's own tests that use envtest, unchanged, on byre. Skipped are those that
# run a script of testdata (the go command unpacks modules without executable bits) and
# those that download another Kubernetes release.
CONTROLLER_RUNTIME := sigs.k8s.io/controller-runtime/pkg
controller-runtime: build kubectl
	cd e2e && export KUBECTL=$(CURDIR)/bin/e2e/kubectl KUBEBUILDER_ASSETS="$$(../bin/byre envtest-assets)" && \
	$(GO) test -count=1 -p 1 $(CONTROLLER_RUNTIME)/internal/testing/controlplane -ginkgo.skip 'argument defaulting when insecure' && \
	$(GO) test -count=1 -p 1 -skip '/aggregatedDiscovery=false' $$($(GO) list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' $(CONTROLLER_RUNTIME)/... | grep /pkg/envtest | cut -d' ' -f1)

# Upstream's integration tests of custom resources, unchanged, on byre: a copy of the module has
# other fixtures, which start a server and read its storage. RUN chooses tests.
# Skipped are those that
#   - write to etcd beside the server, which byre's caches would not know of, or compare the keys
#     and the encoding in etcd; check-5 of TestWebhookConverter is validateStoragePruning;
#   - need definitions of v1beta1, which only etcd can still contain (NonStructural);
#   - need the emulation of 1.31 or 1.32, which kube-apiserver 1.37 does not have either;
#   - want an instance that was created in another version stored without the defaults of the
#     storage version (check-6, validateDefaulting). byre stores what a read gives, with them.
APIEXTENSIONS_SKIP := ^TestEtcdStorage$$|^TestPruningFromStorage$$|^TestInvalidObjectMetaInStorage$$|^TestCBORStorageEnablement$$|$\
  ^TestNonStructuralSchemaConditionUpdate$$|^TestNonStructuralSchemaConditionForCRDV1Beta1MigratedData$$|$\
  ^TestWebhookConversion_WhitespaceCABundleEtcdBypass$$|^TestWebhookConverter.*/^nontrivial-converter/^check-5$$|$\
  ^TestFieldSelectorDropFields$$|^TestFieldSelectorDisablement$$|^TestRatchetingDropFields$$|$\
  ^TestWebhookConverter.*/^nontrivial-converter/^check-6$$/_as_(v1alpha1|v1beta2)$$
RUN ?= .
apiextensions: copy := $(CURDIR)/bin/e2e/apiextensions
apiextensions: build
	rm -rf $(copy) && mkdir -p $(copy)
	cd e2e && cp -r "$$($(GO) list -m -f '{{.Dir}}' k8s.io/apiextensions-apiserver)" $(copy)/module && chmod -R u+w $(copy)/module && \
	cp apiextensions/fixtures/server.go $(copy)/module/test/integration/fixtures/ && \
	cp apiextensions/storage/objectreader.go $(copy)/module/test/integration/storage/ && \
	cp go.mod go.sum $(copy)/ && $(GO) mod edit -replace k8s.io/apiextensions-apiserver=$(copy)/module $(copy)/go.mod && \
	$(GO) test -modfile $(copy)/go.mod -count=1 -p 1 -timeout 60m -ldflags='-s -w' -run '$(RUN)' -skip '$(APIEXTENSIONS_SKIP)' \
	  k8s.io/apiextensions-apiserver/test/integration/...

# Upstream's tests of its storage on etcd, unchanged, on byre etcd: a copy of the module has another testserver, which
# starts byre. DATABASE is sqlite or postgres, by default one after the other, or etcd; RUN chooses tests.
# Skipped is TestTLSConnection: the testserver listens without TLS. The clock of TestCompact waits for a tenth of a
# second of real time, in which a machine that does other work too may not answer; the copy waits a hundred times longer.
ETCD_STORAGE_SKIP := ^TestTLSConnection$$
etcd-storage: copy := $(CURDIR)/bin/e2e/etcd-storage
etcd-storage: build test-setup
	rm -rf $(copy) && mkdir -p $(copy)
	cd e2e && $(GO) run ./programs/build etcd && \
	cp -r "$$($(GO) list -m -f '{{.Dir}}' k8s.io/apiserver)" $(copy)/module && chmod -R u+w $(copy)/module && \
	cp etcd/testserver/test_server.go $(copy)/module/pkg/storage/etcd3/testserver/ && \
	sed -i 's/waitTimeout = 100 /waitTimeout = 10_000 /' $(copy)/module/pkg/storage/etcd3/compact_test.go && \
	cp go.mod go.sum $(copy)/ && $(GO) mod edit -replace k8s.io/apiserver=$(copy)/module -replace byre=$(CURDIR) $(copy)/go.mod && \
	for database in $(or $(DATABASE),sqlite postgres); do \
	  BYRE_ETCD_DATABASE=$$database $(GO) test -modfile $(copy)/go.mod -count=1 -p 1 -timeout 30m -ldflags='-s -w' -run '$(RUN)' \
	    -skip '$(ETCD_STORAGE_SKIP)' k8s.io/apiserver/pkg/storage/etcd3 k8s.io/apiserver/pkg/storage/storagebackend/factory || exit 1; \
	done

# Upstream's conformance tests that need no containers, unchanged, on byre with nodes that kwok
# simulates; e2e/conformance has which these are. DATABASE is sqlite or postgres, by default one
# after the other; FOCUS selects tests by name. The logs and reports are in bin/conformance.
# Building the tests compiles kubelet and more: minutes, once.
FOCUS ?=
conformance: build test-setup
	cd e2e/programs/conformance && $(GO) test -c -ldflags='-s -w' -o $(CURDIR)/bin/e2e/e2e.test k8s.io/kubernetes/test/e2e
	cd e2e && E2E_CONFORMANCE=1 $(GO) test -count=1 -v -timeout 4h ./conformance -args -database '$(DATABASE)' -focus '$(FOCUS)'

# Builds bin/e2e/kubectl, for those who have no kubectl.
kubectl:
	cd e2e && $(GO) run ./programs/build kubectl

# What is released, below bin/dist; packaging/ has how it is made. A cross build compiles
# Kubernetes anew: some minutes and 1.5 GB of the build cache for each platform. Name
# others by PLATFORMS.
PLATFORMS ?= linux/amd64 linux/arm64 linux/arm/v7 darwin/amd64 darwin/arm64
export PLATFORMS

bin/tools/cyclonedx-gomod bin/tools/nfpm: packaging/tools/go.mod
	cd packaging/tools && $(GO) build -o ../../bin/tools/ tool

dist: bin/tools/cyclonedx-gomod
	packaging/dist.sh

dist-check: dist
	packaging/dist-check.sh

image: dist
	packaging/image.sh

deb rpm image: PLATFORMS := $(filter linux/%,$(PLATFORMS))
deb rpm: dist bin/tools/nfpm
	packaging/package.sh $@

# Builds all that is released for this machine's platform twice, and installs, starts,
# upgrades and removes it in containers in which systemd runs. It needs root, and Debian's
# packages rpm and systemd-container.
packages-test:
	.ci/packages
	$(MAKE) deb rpm image dist-check PLATFORMS=linux/$$($(GO) env GOARCH)
	cd e2e && E2E_PACKAGES=1 $(GO) test -count=1 -v -timeout 60m ./packages

# Checks the alerts of packaging/prometheus and their tests by promtool.
alerts-test:
	promtool=$$(.ci/promtool) && cd packaging/prometheus && $$promtool check rules byre.rules.yaml && $$promtool test rules byre.rules.test.yaml

# Breaks things while clients use byre, on both databases and on two machines at once, for DURATION,
# and judges what the clients saw. FAULTS is a regular expression of their names, DATABASE is
# a part of sqlite, postgres, "two machines", "two machines, --replicate-sync" and "two machines, --replicate-sync, versitygw"; the
# results are in bin/robustness. With DOCS=docs they go into docs/reliability.md too.
DURATION ?= 30m
FAULTS   ?=
DATABASE ?=
DOCS     ?=
ROBUSTNESS = $(if $(DOCS),-docs "$(abspath $(DOCS))")
robustness: robustness-power robustness-faults

robustness-power: build test-setup
	cd e2e && $(GO) test -count=1 -v ./robustness/inprocess -args $(ROBUSTNESS)
	cd e2e && $(GO) test -count=1 -v -timeout 60m ./robustness/power -args -failures 3000
	cd e2e && $(GO) test -count=1 -v -timeout 60m ./robustness/migrating -args -step 1 $(ROBUSTNESS)

robustness-faults: build test-setup
	cd e2e && $(GO) test -count=1 -v -parallel 4 -timeout 24h ./robustness -run 'TestRobustness|TestMachines' -args \
	  -duration '$(DURATION)' -faults '$(FAULTS)' -database '$(DATABASE)' $(ROBUSTNESS)

# Has PostgreSQL fail over by real failover managers while clients use byre, and judges what they
# saw. It needs Debian 12, whose packages it unpacks below bin/tools; TOPOLOGIES and FAULTS are regular
# expressions of their names. docs/operations/failover.md has the settings.
TOPOLOGIES ?=
failover: build test-setup
	tools=$$(.ci/unpack failover postgresql-15 postgresql-client-15 patroni python3-etcd haproxy pgbouncer \
	  pg-auto-failover-cli postgresql-15-auto-failover repmgr postgresql-15-repmgr pgpool2 libfaketime) && cd e2e && $(GO) test -count=1 -v -timeout 3h ./failover -args \
	  -tools "$$tools" -topologies '$(TOPOLOGIES)' -faults '$(FAULTS)'

# Upgrades processes under clients from each older schema and release to this one, and back, and
# compares the objects of every kind that the older one has stored. Older programs are built from
# this repository's history; BYRE_OLDER=PATH names another one.
upgrade-test: build test-setup
	cd e2e && $(GO) test -count=1 -v -p 1 -timeout 60m ./robustness ./upgrade -run TestUpgrade -args -upgrade

.PHONY: control-plane control-planes node-test soak upgrade-test

# Two machines, a bucket and an address that keepalived moves, each machine in a network namespace of its own,
# while a Deployment rolls out and cables are pulled. As root, on Debian 12, whose keepalived it unpacks below
# bin/tools.
machines-test: build
	tools=$$(.ci/unpack keepalived keepalived) && cd e2e && E2E_MACHINES="$$tools" $(GO) test -count=1 -v -timeout 30m ./machines

# Has containerd, runc and kubelet join byre and run Pods. It needs root, and Debian's packages
# containerd, runc, containernetworking-plugins, iproute2 and busybox-static. With RENEWAL=1
# it waits until the kubelet has renewed a projected token: ten minutes, because no token
# lives shorter. Where the machine can't run containers, and with HOLLOW=1, upstream's hollow
# kubelets join instead.
RENEWAL ?=
HOLLOW  ?=
node-test: build
	cd e2e && E2E_NODE=1 $(GO) test -count=1 -v -timeout 30m ./node -args $(if $(RENEWAL),-renewal) $(if $(HOLLOW),-hollow)

# Runs upstream's kube-controller-manager and kube-scheduler on byre and kills the servers
# in the middle of rollouts: of 20 Pods in `make test`, and here of ROLLOUT_PODS, KILLS times
# each. With IN_PROCESS=1 byre runs the controllers and the scheduler itself.
ROLLOUT_PODS ?= 200
KILLS        ?= 10
IN_PROCESS   ?=
control-plane: build test-setup
	cd e2e && $(GO) test -count=1 -v -timeout 60m ./controlplane -args -pods $(ROLLOUT_PODS) -kills $(KILLS) $(if $(IN_PROCESS),-in-process)

# Runs CONTROL_PLANES byre processes on one PostgreSQL, with a schema each, logs what each costs,
# and moves one with PostgreSQL's tools while the others are written to. `make test` runs four.
CONTROL_PLANES ?= 20
control-planes: build test-setup
	cd e2e && BYRE_NIGHT=1 E2E_CONTROL_PLANES=$(CONTROL_PLANES) $(GO) test -count=1 -v -timeout 30m -run TestControlPlanes_ .

# Runs byre and a stock kube-apiserver with etcd under the same cluster for a long time, one
# after the other, and judges byre; then k0smotron's loads. The results are in bin/soak;
# docs/soak.md says what it does. SOAK has further flags. NODES=5000 is a large cluster: so many
# nodes, with ten Pods each, on three replicas of byre with one PostgreSQL, and nothing else.
SOAK_DURATION ?= 30m
SOAK_NODES    ?= 200
SOAK_PODS     ?= 5000
SOAK          ?=
soak: build test-setup
	cd e2e && $(GO) run ./soak -duration $(SOAK_DURATION) $(if $(NODES),-suites cluster -only postgres -replicas 3 -nodes $(NODES) -pods $$((10 * $(NODES))),-nodes $(SOAK_NODES) -pods $(SOAK_PODS)) $(SOAK)

# What several writers' locks in one PostgreSQL would bring (docs/decisions/0032-one-writers-lock.md). It
# takes some minutes.
shards: test-setup
	$(TEST) -run '^$$' -bench BenchmarkShards -benchtime 100000x -timeout 60m ./sqlstore/postgres

# Computes what clusters of 1,000 to 130,000 nodes ask of byre, from the measurements in
# docs/performance.md, and writes the table there.
model:
	cd e2e && $(GO) run ./model

# Moves 20,000 objects of all built-in kinds from etcd and from kine to byre and back, and
# restores a backup of 20,000 under clients that watch.
transfer: build test-setup
	cd e2e && E2E_TRANSFER_OBJECTS=20000 $(GO) test -count=1 -v -timeout 60m ./transfer
	cd e2e && E2E_BACKUP_OBJECTS=20000 $(GO) test -count=1 -v -timeout 60m -run TestRestore_InformersConverge .

# Has Litestream replicate a SQLite file, and restores it. Building Litestream takes minutes.
litestream: build
	cd e2e && E2E_LITESTREAM=1 $(GO) test -count=1 -v -timeout 60m -run TestLitestream .

# Measures byre beside a stock kube-apiserver with etcd; the results are in
# bin/bench. make bench BENCH=-short gives a first impression in a minute;
# e2e/bench/doc.go says what else there is.
bench: build test-setup
	cd e2e && $(GO) run ./bench $(BENCH)

# Compares stores of 10,000 objects with stores of GROWTH objects, each with GROWTH_CHANGES
# changes, on both databases: the plans of all statements, the speed of reads and of compaction,
# and that of writes during a compaction. A million takes some minutes and 10 GB; with ten changes of each,
# GROWTH_CHANGES=10, an hour and 20 GB. Then it compares reads of the past after 10,000 changes
# with those after GROWTH_HISTORY changes of the same objects.
GROWTH         ?= 1000000
GROWTH_CHANGES ?= 2
GROWTH_HISTORY ?= 10000000
growth: test-setup
	BYRE_GROWTH=$(GROWTH) $(GO) test ./sqlstore/sqlite ./sqlstore/postgres -run TestPlans -count=1 -timeout 60m
	BYRE_GROWTH=$(GROWTH) BYRE_GROWTH_CHANGES=$(GROWTH_CHANGES) $(GO) test ./sqlstore -run TestGrowth_ReadsAndCompactionKeepTheirSpeed -count=1 -timeout 120m -v
	BYRE_GROWTH_HISTORY=$(GROWTH_HISTORY) $(GO) test ./sqlstore -run TestGrowth_ReadsDoNotGrowWithHistory -count=1 -timeout 120m -v

# The packages that have fuzz targets, and the targets of the package $$p.
FUZZ_PKGS    = $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -rn1 dirname | sort -u)
FUZZ_TARGETS = $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$p/*_test.go | sed 's/func //')

# What a target finds is written to testdata/fuzz of its package.
fuzz: test-setup
	@for p in $(FUZZ_PKGS); do for f in $(FUZZ_TARGETS); do \
	  echo "== $$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$p || exit 1; \
	done; done

# Runs the scripts of findings/, which need the network.
findings:
	@for f in findings/*.sh; do echo "== $$f"; $$f || exit 1; done

clean:
	rm -rf bin
