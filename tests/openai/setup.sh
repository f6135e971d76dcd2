#!/usr/bin/env bash
# Installs OpenAI's client for Python in the user's cache (10 MB of downloads, 60 MB of disk).
#
# usage: setup.sh
set -euo pipefail
cd "$(dirname "$0")"
../../scripts/python_environment.sh openai 3.57.0 pins.txt # version as in pins.txt
