#!/usr/bin/env bash
# Builds kubeconform, puts the OpenAPI document of Kubernetes beside it, and prints the folder.
#
# usage: build.sh
set -euo pipefail
cd "$(dirname "$0")"
version=0.8.0 # as in go.mod
folder=$(../../scripts/go_install.sh kubeconform "$version" \
    github.com/yannh/kubeconform/cmd/kubeconform)
exec 9>"$folder/.lock"
flock 9 # serializes concurrent copies
if [ ! -f "$folder/swagger.json" ]; then
    kubernetes=$(cd ../kube && go mod download k8s.io/kubernetes &&
        go list -m -f '{{.Dir}}' k8s.io/kubernetes)
    install -m 644 "$kubernetes/api/openapi-spec/swagger.json" "$folder/.swagger.part"
    mv "$folder/.swagger.part" "$folder/swagger.json"
fi
echo "$folder"
