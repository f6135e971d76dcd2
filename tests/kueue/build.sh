#!/usr/bin/env bash
# Builds Kueue from its repository into the user's cache: the program `kueue`, and `chart`, its Helm
# chart with the CRDs. Prints the folder. A first build takes 10 minutes on 2 cores; a complete folder
# is left unchanged. Dependencies are in the repository. Requires Go and git.
#
# usage: build.sh [REPOSITORY]      REPOSITORY: path or URL of a clone that has the tag
set -euo pipefail
cd "$(dirname "$0")"
version=0.19.2
repository=${1:-https://github.com/kubernetes-sigs/kueue}
folder=${XDG_CACHE_HOME:-$HOME/.cache}/rljob/kueue-$version
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9 # serializes concurrent builds
if [ ! -x "$folder/kueue" ]; then
    echo "setup: building Kueue $version from $repository (some minutes the first time)" >&2
    source=$folder/.source
    rm -rf "$source" "$folder/chart"
    git init --quiet "$source"
    git -C "$source" fetch --quiet --depth 1 "$repository" "refs/tags/v$version"
    git -C "$source" -c advice.detachedHead=false checkout --quiet FETCH_HEAD
    CGO_ENABLED=0 go build -C "$source" -trimpath -buildvcs=false \
        -ldflags "-s -w -X sigs.k8s.io/kueue/pkg/version.GitVersion=v$version" \
        -o "$folder/.kueue.part" ./cmd/kueue
    cp -r "$source/charts/kueue" "$folder/chart"
    rm -rf "$source"
    mv "$folder/.kueue.part" "$folder/kueue" # renamed only after a complete build
fi
echo "$folder"
