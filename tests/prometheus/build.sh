#!/usr/bin/env bash
# Builds Prometheus and promtool from Go modules into the user's cache, without web interface and,
# except that of Kubernetes, service discovery by APIs. Prints the folder. A first build takes 5
# minutes on 2 cores; a complete folder is left unchanged. Requires Go, which downloads the version
# of go.mod.
#
# usage: build.sh
set -euo pipefail
cd "$(dirname "$0")"
version=3.16.0 # v0.316.0 in go.mod
folder=${XDG_CACHE_HOME:-$HOME/.cache}/rljob/prometheus-$version-kubernetes
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9 # serializes concurrent builds
for program in prometheus promtool; do
    [ -x "$folder/$program" ] && continue
    echo "setup: building $program $version (some minutes the first time)" >&2
    CGO_ENABLED=0 go build -trimpath -tags remove_all_sd,enable_kubernetes_sd \
        -ldflags "-s -w -X github.com/prometheus/common/version.Version=$version" \
        -o "$folder/.$program.part" "github.com/prometheus/prometheus/cmd/$program"
    mv "$folder/.$program.part" "$folder/$program" # renamed only after a complete build
done
echo "$folder"
