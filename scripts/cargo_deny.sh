#!/usr/bin/env bash
# Runs cargo-deny, which it builds from crates.io first.
#
# usage: cargo_deny.sh CHECK ...
set -euo pipefail
cd "$(dirname "$0")/.."
deny=$(scripts/cargo_install.sh cargo-deny 0.20.2)
# Only problems are printed: warnings are errors.
exec "$deny" --log-level warn --locked check --deny warnings "$@"
