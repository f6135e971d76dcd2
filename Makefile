# Commands of this project. CI runs `make test`. Every target can be repeated and leaves no process
# running.
.DEFAULT_GOAL := help
.PHONY: help setup setup-nodes setup-libtorch setup-kubernetes setup-sglang setup-s3 setup-helm \
	setup-kubeconform setup-prometheus setup-prometheus-operator setup-gitops setup-mlflow \
	setup-otelcol setup-openai setup-mcp setup-peft setup-browser setup-network setup-cuda \
	build-cuda check-cuda quickstart \
	test lint build unit e2e e2e-network e2e-sglang e2e-kueue chaos bench docs compat advisories fuzz asan manifests \
	dashboards krew math-suites objectives two-turns learning gangs thorough images check-images e2e-images

# Test clusters require root; for other users, cargo starts the test programs through sudo.
SUDO_RUNNER := CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="sudo --preserve-env"
ROOT_RUNNER := $(if $(filter 0,$(shell id -u)),,$(SUDO_RUNNER))
# All targets select the whole workspace, so that cargo resolves features once and builds each
# dependency once.
CARGO_TEST = $(INTERPRETER_FIRST) OMP_NUM_THREADS=1 $(ROOT_RUNNER) cargo test --workspace --locked
# Version managers put a script in the place of python3, which takes longer than the programs that
# tests start by the thousand. The folder of the interpreter is searched first if it is another one.
INTERPRETER_FIRST = $(shell python3 -c 'import os, sys; \
	found, folder = map(os.path.dirname, [sys.argv[1], sys.executable]); \
	print("" if found == folder else f"PATH={folder}:$$PATH")' "$$(command -v python3)")
# Integration tests wait for controllers, probes and timeouts a part of the time: twice as many as
# there are cores run at once. With three times as many, they take as long on two cores.
TEST_THREADS ?= $(shell expr 2 \* $$(nproc))
# Jobs on nodes wait more.
E2E_THREADS ?= $(shell expr 3 \* $$(nproc) / 2)

# Packages and programs that the quick start runs.
QUICKSTART := $(foreach package,operator coordinator sandbox learner engine,--package rljob-$(package)) \
	--bin rljob \
	$(foreach program,coordinator reward-runner sandbox supervisor learner engine,--bin rljob-$(program))

CHAOS = $(INTERPRETER_FIRST) OMP_NUM_THREADS=1 $(ROOT_RUNNER) cargo run --locked --bin rljob-chaos

help: ## Print this list
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: $(addprefix setup-,libtorch cuda kubernetes sglang s3 helm kubeconform prometheus prometheus-operator gitops mlflow otelcol openai mcp peft browser) ## Install all requirements

setup-nodes: setup-libtorch setup-kubernetes setup-helm ## Install what the test cluster needs

setup-libtorch:
	trainer/collective/setup.sh

setup-cuda: setup-libtorch ## Install the CUDA compiler and headers, to build for GPUs (820 MB)
	trainer/kernels/setup_cuda.sh

setup-kubernetes:
	tests/kube/setup.sh

setup-sglang:
	tests/sglang/setup.sh

setup-s3:
	tests/s3/build.sh >/dev/null

setup-helm:
	tests/helm/build.sh >/dev/null

setup-kubeconform:
	tests/kubeconform/build.sh >/dev/null

setup-prometheus:
	tests/prometheus/build.sh >/dev/null

setup-prometheus-operator:
	tests/prometheus-operator/build.sh >/dev/null

setup-gitops:
	tests/gitops/build.sh >/dev/null

setup-mlflow:
	tests/mlflow/setup.sh >/dev/null

setup-otelcol:
	tests/otelcol/build.sh >/dev/null

setup-openai:
	tests/openai/setup.sh >/dev/null

setup-mcp:
	tests/mcp/setup.sh >/dev/null

setup-peft:
	tests/peft/setup.sh >/dev/null

setup-browser:
	scripts/packages.sh chromium=chromium
	tests/axe/setup.sh >/dev/null

setup-network:
	scripts/packages.sh ipset=ipset
	tests/network/build.sh >/dev/null

quickstart: setup-libtorch ## Train a tiny model on arithmetic with GRPO on this machine (minutes)
	cargo build --profile quick --locked $(QUICKSTART)
	manifests/samples/quickstart.sh

objectives: setup-libtorch ## Train the quick start's model with every objective (10 minutes)
	cargo build --profile quick --locked $(QUICKSTART)
	rm -rf target/objectives
	python3 bench/objectives.py target/quick/rljob target/objectives

two-turns: setup-libtorch ## Train a task that only a second turn can solve (minutes)
	cargo build --profile quick --locked $(QUICKSTART)
	rm -rf target/two-turns
	python3 bench/two_turns.py target/quick/rljob target/two-turns

# Objectives of the figure besides GRPO, whose run comes first.
CURVES := gspo reinforce-plus-plus ppo ppo-value-head lora

learning: setup-libtorch ## Draw what six objectives learn with three seeds (half an hour)
	cargo build --profile quick --locked $(QUICKSTART)
	rm -rf target/learning
	mkdir -p target/learning
	for seed in 1 2 3; do python3 bench/objectives.py target/quick/rljob target/learning/$$seed \
		--seed $$seed --only $(CURVES) || exit; done
	$$(bench/plots/setup.sh)/bin/python bench/curves.py target/learning docs/learning.svg

math-suites: ## Compare verdicts on answers with Math-Verify: SUITES, a folder of files of JSON lines
	mkdir -p target/math-suites
	$$(trainer/math/benches/setup.sh)/bin/python trainer/math/benches/compare_math_verify.py \
		target/math-suites/wrong.tsv $(SUITES)

test: setup lint check-cuda build unit e2e docs ## Run all checks: lints, tests, jobs on a real Kubernetes

dashboards: ## Write the Grafana dashboards of the chart from scripts/dashboards.py
	scripts/dashboards.py charts/rljob/files/dashboards

krew: ## Build the archive of the kubectl plugin and its krew manifest in target/krew
	cargo build --release --locked --package rljob-operator --bin rljob
	scripts/krew.sh target/release/rljob target/krew

manifests: setup-helm ## Render manifests/install.yaml and manifests/components from charts/rljob
	scripts/install_manifest.sh >manifests/install.yaml.part
	mv manifests/install.yaml.part manifests/install.yaml
	for name in dashboards kueue pod-monitor pod-monitor-jobs prometheus-rule; do \
		objects=manifests/components/$$name/objects.yaml; \
		scripts/component_manifest.sh $$name >$$objects.part && mv $$objects.part $$objects || exit; \
	done

lint: setup-libtorch ## Check formatting and lints; warnings are errors
	cargo fmt --all --check
	test -z "$$(gofmt -l scripts/syft tests/gitops tests/helm tests/kube tests/kubeflow \
		tests/network tests/otelcol tests/prometheus tests/prometheus-operator tests/s3)"
	cargo clippy --workspace --all-targets --locked -- --deny warnings
	scripts/cargo_deny.sh licenses bans sources

advisories: ## Check dependencies for known vulnerabilities (not in `make test`: needs github.com)
	scripts/cargo_deny.sh advisories

fuzz: setup-libtorch ## Fuzz the parsers of outside input: FUZZ_MINUTES (10), divided by targets
	scripts/fuzz.sh

images: setup-libtorch ## Build all images but that for CUDA in target/images, without a registry
	scripts/release_build.sh --workspace --bins --features rljob-operator/jemalloc
	for image in operator sandbox tools trainer; do \
		scripts/image.sh $$image target/release target/images && \
			scripts/sbom.sh $$image target/images || exit; \
	done

check-images: ## Build an image twice and compare digests: IMAGE (tools), PROGRAMS (target/release)
	scripts/image_repeat.sh $(or $(IMAGE),tools) $(or $(PROGRAMS),target/release) target/images

e2e-images: setup images ## Run jobs on a real Kubernetes with the image of `make images`
	RLJOB_IMAGE=$(CURDIR)/target/images/trainer.tar $(CARGO_TEST) --test integration \
		e2e::release e2e::rewards -- --nocapture

# The runtime must be loaded first. Leaks are not reported: libtorch keeps its registries until the
# process ends. Programs of target/asan do not find libtorch by their run path.
ASAN_RUNNER = env LD_PRELOAD=$(shell c++ -print-file-name=libasan.so) \
	ASAN_OPTIONS=detect_leaks=0 LD_LIBRARY_PATH=$(CURDIR)/.libtorch/lib

asan: setup-libtorch ## Run the tests of the C++ shim with AddressSanitizer
	RLJOB_SANITIZE=address CARGO_TARGET_DIR=target/asan OMP_NUM_THREADS=1 \
		CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$(ASAN_RUNNER)" \
		cargo test --locked --package rljob-collective

build: setup-libtorch
	cargo build --workspace --bins --locked

build-cuda: setup-cuda ## Build programs, tests and benchmarks for NVIDIA GPUs (needs no GPU)
	cargo build --profile quick --locked --features rljob-learner/cuda $(QUICKSTART)
	cargo test --profile quick --locked --features rljob-learner/cuda --no-run \
		--package rljob-kernels --package rljob-learner --test cuda --test gpu
	cargo bench --profile quick --locked --features rljob-learner/cuda --no-run \
		--package rljob-kernels --package rljob-learner --bench cuda --bench gpu

# Before `build`, which puts the learner without CUDA back into target/debug.
check-cuda: setup-cuda ## Compile and link the CUDA code with its tests (needs no GPU)
	cargo test --workspace --locked --features rljob-learner/cuda --no-run --test cuda --test gpu

unit: setup build
	$(CARGO_TEST) -- --skip e2e:: --test-threads $(TEST_THREADS)

e2e: setup build ## Run jobs on a real two-node Kubernetes here, one under fault injection
	$(CARGO_TEST) --test integration e2e:: -- --skip e2e::sglang:: --skip e2e::network:: \
		--skip e2e::kueue:: --test-threads $(E2E_THREADS) --nocapture
	CHAOS_MINUTES=0 CHAOS_SEED=1 $(CHAOS)

thorough: setup build ## Test all faults and misuse of which `make test` takes a part, and long tests (half an hour)
	RLJOB_THOROUGH=1 $(CARGO_TEST) --test integration control_plane::faults
	$(CARGO_TEST) --test integration -- --ignored --test-threads $(TEST_THREADS)

e2e-network: setup setup-network build ## Run a job on a node that enforces NetworkPolicies
	$(CARGO_TEST) --test integration e2e::network:: -- --nocapture

e2e-kueue: setup build ## Run jobs in queues of the real Kueue: KUEUE_REPOSITORY (github.com), a clone of it
	tests/kueue/build.sh $(KUEUE_REPOSITORY) >/dev/null
	$(CARGO_TEST) --test integration e2e::kueue:: -- --nocapture

chaos: setup build ## Inject faults into jobs: CHAOS_MINUTES (30), CHAOS_SEED, CHAOS_ENGINE, CHAOS_FAULTS
	$(CHAOS)

gangs: setup build ## Start two gangs that each need all nodes: GANG_STARTS (100)
	GANG_STARTS=$(or $(GANG_STARTS),100) $(CARGO_TEST) --test integration \
		control_plane::gangs::native::two_gangs -- --nocapture

e2e-sglang: setup build ## Run jobs with the real SGLang on the CPU in pods (not in `make test`)
	$(CARGO_TEST) --test integration e2e::sglang:: -- --nocapture
	CHAOS_ENGINE=SGLang CHAOS_MINUTES=0 CHAOS_SEED=2 $(CHAOS)

# The release before, whose programs run beside this tree's.
COMPAT_REF ?= 6666de9

compat: build ## Run jobs with processes of this tree and of release COMPAT_REF, built in the cache
	COMPAT_REF=$(COMPAT_REF) scripts/compat.sh

bench: setup ## Measure against peers on 2 cores; prints `bench NAME RATIO TARGET holds|short`
	tests/kubeflow/build.sh >/dev/null
	cargo bench --workspace --locked --features rljob-operator/jemalloc --bench '*' --no-run
	OMP_NUM_THREADS=2 $(ROOT_RUNNER) taskset --cpu-list 0,1 cargo bench --workspace --locked \
		--features rljob-operator/jemalloc --bench '*'

.PHONY: site
site: ## Build the site of the documents in target/site with mdBook
	scripts/site.sh

docs: setup-libtorch ## Build the API documentation; warnings are errors
	RUSTDOCFLAGS="--deny warnings --allow rustdoc::private-intra-doc-links" \
		cargo doc --workspace --no-deps --document-private-items --locked
