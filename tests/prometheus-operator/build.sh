#!/usr/bin/env bash
# Builds the program that configures Prometheus as the Prometheus Operator does from Go modules into
# the user's cache, with the CRDs of PodMonitors and PrometheusRules. Prints the folder. A first
# build takes a minute on 2 cores after that of Prometheus, whose versions of libraries go.mod has. A
# complete folder is left unchanged. Requires Go, which downloads the version of go.mod.
#
# usage: build.sh
set -euo pipefail
cd "$(dirname "$0")"
version=0.85.0 # as in go.mod
folder=${XDG_CACHE_HOME:-$HOME/.cache}/rljob/prometheus-operator-$version
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9 # serializes concurrent builds
sources=$(cat main.go go.mod go.sum | sha256sum)
if [ "$(cat "$folder/.sources" 2>/dev/null)" != "$sources" ]; then
    echo "setup: building libraries of the Prometheus Operator $version (some minutes)" >&2
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$folder/.config.part" .
    mv "$folder/.config.part" "$folder/prometheus-config" # renamed only after a complete build
    echo "$sources" >"$folder/.sources"
fi
operator=github.com/prometheus-operator/prometheus-operator
for kind in podmonitors prometheusrules; do
    [ -f "$folder/$kind.yaml" ] && continue
    go mod download $operator
    crds=$(go list -m -f '{{.Dir}}' $operator)/example/prometheus-operator-crd
    install -m 644 "$crds/monitoring.coreos.com_$kind.yaml" "$folder/.$kind.part"
    mv "$folder/.$kind.part" "$folder/$kind.yaml"
done
echo "$folder"
