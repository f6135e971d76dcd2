#!/usr/bin/env bash
# Builds the program that judges objects as Argo CD and Flux do from Go modules into the user's
# cache, with the CRDs of Applications, Kustomizations, GitRepositories and HelmReleases. Prints the
# folder. A first build takes 4 minutes on 2 cores; a complete folder is left unchanged. Requires
# Go, which downloads the version of go.mod.
#
# usage: build.sh
set -euo pipefail
cd "$(dirname "$0")"
# The newest that Go 1.26 builds. flux: kustomize-controller, whose libraries are in go.mod.
argocd=3.5.7 flux=1.9.6 helm_controller=1.6.0
folder=${XDG_CACHE_HOME:-$HOME/.cache}/rljob/gitops-argocd-$argocd-flux-$flux
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9 # serializes concurrent builds
sources=$(cat ./*.go go.mod go.sum | sha256sum)
if [ "$(cat "$folder/.sources" 2>/dev/null)" != "$sources" ]; then
    echo "setup: building libraries of Argo CD $argocd and Flux (some minutes the first time)" >&2
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$folder/.gitops.part" .
    mv "$folder/.gitops.part" "$folder/gitops" # renamed only after a complete build
    echo "$sources" >"$folder/.sources"
fi

# Copies a CRD from a module, which need not be in go.mod: its checksum is in Go's database.
crd() { # name, module with version, file
    [ -f "$folder/$1.yaml" ] && return
    module=$(go mod download -json "$2" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    install -m 644 "$module/$3" "$folder/.$1.part"
    mv "$folder/.$1.part" "$folder/$1.yaml"
}

crds=config/crd/bases
crd applications "github.com/argoproj/argo-cd/v3@v$argocd" manifests/crds/application-crd.yaml
crd kustomizations "github.com/fluxcd/kustomize-controller@v$flux" \
    $crds/kustomize.toolkit.fluxcd.io_kustomizations.yaml
crd gitrepositories "github.com/fluxcd/source-controller@v$flux" \
    $crds/source.toolkit.fluxcd.io_gitrepositories.yaml
crd helmreleases "github.com/fluxcd/helm-controller@v$helm_controller" \
    $crds/helm.toolkit.fluxcd.io_helmreleases.yaml
echo "$folder"
