#!/usr/bin/env bash
# Installs PEFT in the user's cache (1 MB of downloads, 20 MB of disk). It runs with the torch and
# transformers of tests/sglang/setup.sh.
#
# usage: setup.sh
set -euo pipefail
cd "$(dirname "$0")"
../../scripts/python_environment.sh peft 0.21.2 pins.txt # version as in pins.txt
