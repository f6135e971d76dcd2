#!/usr/bin/env bash
# Installs the Python SDK of MCP in the user's cache (16 MB of downloads, 70 MB of disk).
#
# usage: setup.sh
set -euo pipefail
cd "$(dirname "$0")"
../../scripts/python_environment.sh mcp 2.3.0 pins.txt # version as in pins.txt
