#!/usr/bin/env bash
# Installs Matplotlib in the user's cache (30 MB of downloads) and prints the folder of its Python
# environment.
#
# usage: setup.sh
set -euo pipefail
cd "$(dirname "$0")"
../../scripts/python_environment.sh matplotlib 3.11.2 pins.txt # version as in pins.txt
