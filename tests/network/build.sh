#!/usr/bin/env bash
# Builds kube-router, which enforces NetworkPolicies on the node of a test cluster, from Go modules
# into the user's cache. Prints the folder. A first build takes 3 minutes on 2 cores; a complete
# folder is left unchanged. Requires Go, which downloads the version of go.mod.
#
# usage: build.sh
set -euo pipefail
cd "$(dirname "$0")"
version=2.1.0 # as in go.mod
folder=${XDG_CACHE_HOME:-$HOME/.cache}/rljob/kube-router-$version
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9 # serializes concurrent builds
if [ ! -x "$folder/kube-router" ]; then
    echo "setup: building kube-router $version (some minutes the first time)" >&2
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$folder/.kube-router.part" \
        github.com/cloudnativelabs/kube-router/v2/cmd/kube-router
    mv "$folder/.kube-router.part" "$folder/kube-router" # renamed only after a complete build
fi
echo "$folder"
