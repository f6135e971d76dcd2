#!/usr/bin/env bash
# Builds kubeconform from Go modules into the user's cache, with the OpenAPI document of Kubernetes.
# Prints the folder. A complete folder is left unchanged. Requires Go, which downloads the version of go.mod.
#
# usage: build.sh
set -euo pipefail
cd "$(dirname "$0")"
version=0.8.0 # as in go.mod
folder=${XDG_CACHE_HOME:-$HOME/.cache}/rljob/kubeconform-$version
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9 # serializes concurrent builds
if [ ! -x "$folder/kubeconform" ]; then
    echo "setup: building kubeconform $version" >&2
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$folder/.kubeconform.part" \
        github.com/yannh/kubeconform/cmd/kubeconform
    mv "$folder/.kubeconform.part" "$folder/kubeconform" # renamed only after a complete build
fi
if [ ! -f "$folder/swagger.json" ]; then
    kubernetes=$(cd ../kube && go mod download k8s.io/kubernetes && go list -m -f '{{.Dir}}' k8s.io/kubernetes)
    install -m 644 "$kubernetes/api/openapi-spec/swagger.json" "$folder/.swagger.part"
    mv "$folder/.swagger.part" "$folder/swagger.json"
fi
echo "$folder"
