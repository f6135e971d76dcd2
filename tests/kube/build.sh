#!/usr/bin/env bash
# Builds the Kubernetes of the tests from Go modules into the user's cache: kube (Kubernetes 1.37,
# etcd and CoreDNS in one binary, with a link for each program), pause and device-plugin. Prints the
# folder. A first build takes 6 minutes on 2 cores; a complete folder is left unchanged. Requires Go,
# which downloads the version of go.mod.
#
# usage: build.sh
set -euo pipefail
cd "$(dirname "$0")"
version=1.37.0
programs=(etcd coredns kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/rljob/kube-$version
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9 # serializes concurrent builds

# Renames the output only after a complete build.
build() { # output, package, linker flags
    [ -x "$folder/$1" ] && return
    echo "setup: building $1 for Kubernetes $version (some minutes the first time)" >&2
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $3" -o "$folder/.$1.part" "$2"
    mv "$folder/.$1.part" "$folder/$1"
}

stamp=k8s.io/component-base/version
build kube . "-X $stamp.gitVersion=v$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=37"
build pause ./pause ""
plugin=$folder/device-plugin # has sources of this project that change
if [ -x "$plugin" ] && [ -n "$(find device-plugin -newer "$plugin")" ]; then rm "$plugin"; fi
build device-plugin ./device-plugin ""
for program in "${programs[@]}"; do ln -sfn kube "$folder/$program"; done
echo "$folder"
