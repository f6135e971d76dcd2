#!/usr/bin/env bash
# Builds kube-router, which enforces NetworkPolicies on the node of a test cluster, and prints its
# folder.
#
# usage: build.sh
set -euo pipefail
cd "$(dirname "$0")"
version=2.1.0 # as in go.mod
exec ../../scripts/go_install.sh kube-router "$version" \
    github.com/cloudnativelabs/kube-router/v2/cmd/kube-router
