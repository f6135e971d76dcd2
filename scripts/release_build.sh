#!/usr/bin/env bash
# Builds programs of images: a release build whose programs contain the list of their crates, which
# scanners read. cargo-auditable wraps rustc.
#
# usage: release_build.sh CARGO_ARGUMENT ...
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(scripts/cargo_install.sh cargo-auditable 0.7.7)
PATH=$(dirname "$program"):$PATH exec cargo auditable build --release --locked "$@"
