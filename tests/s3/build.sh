#!/usr/bin/env bash
# Builds versitygw, the S3 server of the tests, and prints its folder.
#
# usage: build.sh
set -euo pipefail
cd "$(dirname "$0")"
version=1.8.0 # as in go.mod
exec ../../scripts/go_install.sh versitygw "$version" github.com/versity/versitygw/cmd/versitygw
