# The commands of this project. CI runs `make test`; every target may be run again at any time and leaves nothing running.
.DEFAULT_GOAL := help
.PHONY: help setup setup-libtorch setup-kubernetes setup-sglang setup-s3 quickstart test lint build unit e2e e2e-sglang chaos bench docs

# Test clusters need root. Where make is run by another user, cargo starts the test programs through sudo.
ROOT_RUNNER := $(if $(filter 0,$(shell id -u)),,CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="sudo --preserve-env")
# All of them name the whole workspace: with one selection of packages, cargo builds each dependency once.
CARGO_TEST := OMP_NUM_THREADS=1 $(ROOT_RUNNER) cargo test --workspace --locked

CHAOS := OMP_NUM_THREADS=1 $(ROOT_RUNNER) cargo run --locked --bin rljob-chaos

help: ## Print this list
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: setup-libtorch setup-kubernetes setup-sglang setup-s3 ## Install what building and testing need: packages, libtorch, a Kubernetes, SGLang for the CPU, an S3 server

setup-libtorch:
	trainer/collective/setup.sh

setup-kubernetes:
	tests/kube/setup.sh

setup-sglang:
	tests/sglang/setup.sh

setup-s3:
	tests/s3/build.sh >/dev/null

quickstart: setup-libtorch ## Teach a tiny model arithmetic with GRPO on this machine (minutes)
	cargo build --release --locked --workspace --bins
	manifests/samples/quickstart.sh

test: setup lint build unit e2e docs ## Check and test everything: lints, unit, parity and control-plane tests, runs on this machine and on a real Kubernetes

lint: setup-libtorch ## Check formatting and lints; warnings are errors
	cargo fmt --all --check
	test -z "$$(gofmt -l tests/kube tests/kubeflow tests/s3)"
	cargo clippy --workspace --all-targets --locked -- --deny warnings

build: setup-libtorch
	cargo build --workspace --bins --locked

unit: setup build
	$(CARGO_TEST) -- --skip e2e::

e2e: setup build ## Run jobs on a real Kubernetes of two nodes on this machine, one of them under faults
	$(CARGO_TEST) --test integration e2e:: -- --skip e2e::sglang:: --nocapture
	CHAOS_MINUTES=0 CHAOS_SEED=1 $(CHAOS)

chaos: setup build ## Let jobs fail on two nodes for CHAOS_MINUTES (30) by the seed CHAOS_SEED, on engines of CHAOS_ENGINE; prints `chaos: F faults, V violations`
	$(CHAOS)

e2e-sglang: setup build ## Run jobs on the real SGLang in pods, on the CPU, one of them under faults (minutes; not part of `make test`)
	$(CARGO_TEST) --test integration e2e::sglang:: -- --nocapture
	CHAOS_ENGINE=SGLang CHAOS_MINUTES=0 CHAOS_SEED=2 $(CHAOS)

bench: setup ## Measure on 2 cores against peers, in turn; prints `bench NAME RATIO AIM holds|short` (RLJOB_PYTHON names the peers' Python)
	tests/kubeflow/build.sh >/dev/null
	cargo bench --workspace --locked --bench '*' --no-run
	OMP_NUM_THREADS=2 $(ROOT_RUNNER) taskset --cpu-list 0,1 cargo bench --workspace --locked --bench '*'

docs: setup-libtorch ## Build the API documentation; warnings are errors
	RUSTDOCFLAGS="--deny warnings --allow rustdoc::private-intra-doc-links" cargo doc --workspace --no-deps --document-private-items --locked
