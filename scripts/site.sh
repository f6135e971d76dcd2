#!/usr/bin/env bash
# Builds the site of docs/ into target/site with mdBook, which it builds from crates.io first.
set -euo pipefail
cd "$(dirname "$0")/.."
mdbook=$(scripts/cargo_install.sh mdbook 0.5.4 search)
rm -rf target/site
"$mdbook" build
