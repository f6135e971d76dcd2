#!/usr/bin/env bash
# Installs MLflow's tracking server in the user's cache, without the libraries for models that it
# does not need (100 MB of downloads, 400 MB of disk).
#
# usage: setup.sh
set -euo pipefail
cd "$(dirname "$0")"
../../scripts/python_environment.sh mlflow 3.17.2 pins.txt # version as in pins.txt
