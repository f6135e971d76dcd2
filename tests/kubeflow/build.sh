#!/usr/bin/env bash
# Builds Kubeflow Trainer and JobSet, the peers of `make bench`, from Go modules into the user's
# cache, with their CRDs. Prints the folder. A first build takes minutes on 2 cores; a complete
# folder is left unchanged. Requires Go, which downloads the version of go.mod.
#
# usage: build.sh
set -euo pipefail
cd "$(dirname "$0")"
trainer=2.0.0 jobset=0.8.2 # as in go.mod
folder=${XDG_CACHE_HOME:-$HOME/.cache}/rljob/kubeflow-trainer-$trainer-jobset-$jobset
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9 # serializes concurrent builds

# Renames the output only after a complete build.
build() { # output, package, module, its CRDs
    [ -x "$folder/$1" ] && return
    echo "setup: building $2 (some minutes the first time)" >&2
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$folder/.$1.part" "$2"
    cat "$(go list -m -f '{{.Dir}}' "$3")/$4"/*_*.yaml >"$folder/$1.yaml"
    mv "$folder/.$1.part" "$folder/$1"
}

build trainer github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager \
    github.com/kubeflow/trainer/v2 manifests/base/crds
build jobset sigs.k8s.io/jobset sigs.k8s.io/jobset config/components/crd/bases
echo "$folder"
