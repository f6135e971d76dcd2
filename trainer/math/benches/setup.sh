#!/usr/bin/env bash
# Installs Math-Verify in the user's cache (8 MB of downloads, 80 MB of disk).
#
# usage: setup.sh
set -euo pipefail
cd "$(dirname "$0")"
../../../scripts/python_environment.sh math-verify 0.8.0 pins.txt # version as in pins.txt
