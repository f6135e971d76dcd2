#!/usr/bin/env bash
# Packs what kubernetes.py needs on a machine without network, without a checkout and without the
# programs of nodes: kube (Kubernetes), root (containerd, runc, CNI plugins, and small tools with
# their libraries) and own (the project's programs and files). x86_64, glibc 2.36 or later. Unpack
# all archives in one folder, the --bundle. An existing kube or root is left unchanged.
#
# usage: kubernetes_bundle.sh PROGRAMS OUT      PROGRAMS: folder of rljob-test-cluster, for example
#                                               target/debug
set -euo pipefail
programs=$(realpath "$1") out=$(realpath -m "$2")
cd "$(dirname "$0")/../.."
kube=$(tests/kube/build.sh)
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pack() { # name, folder, its parts
    local name=$1 folder=$2
    shift 2
    tar --create --directory "$folder" "$@" | xz -T0 -6 >"$out/.$name.part"
    mv "$out/.$name.part" "$out/$name.tar.xz"
}

mkdir -p "$work/own/bin" "$work/own/tree"
cp "$kube/device-plugin" "$work/own/bin"
for name in rljob-test-cluster rljob-operator; do
    strip -o "$work/own/bin/$name" "$programs/$name"
done
cp -a --parents bench/gpu manifests/install.yaml manifests/samples/quickstart "$work/own/tree"
pack own "$work/own" bin tree

if [ ! -e "$out/kube.tar.xz" ]; then
    mkdir -p "$work/kube/bin"
    cp -a "$kube"/{kube,pause,etcd,coredns,kubectl,kubelet} "$kube"/kube-* "$work/kube/bin"
    pack kube "$work/kube" bin
fi
if [ -e "$out/root.tar.xz" ]; then
    exit
fi
mkdir -p "$work/root/usr/bin" "$work/root/usr/sbin" "$work/root/usr/lib/cni"
cp /usr/bin/{containerd,containerd-shim-runc-v2,ctr} "$work/root/usr/bin"
cp /usr/sbin/runc "$work/root/usr/sbin"
cp /usr/lib/cni/{bridge,host-local,loopback} "$work/root/usr/lib/cni"
mkdir -p "$work/root/usr/lib/x86_64-linux-gnu"
cp -L /usr/lib/x86_64-linux-gnu/libseccomp.so.2 "$work/root/usr/lib/x86_64-linux-gnu"

# Tools start through their own loader, so that no library of the machine is replaced.
tools=/usr/lib/rljob-tools
mkdir -p "$work/root$tools"
for tool in ip openssl sysctl pgrep nsenter unshare; do
    path=$(PATH=$PATH:/usr/sbin:/sbin command -v "$tool")
    cp -L "$path" "$work/root$tools/$tool"
    ldd "$path" | grep -o '/[^ ]*' | xargs -I{} cp -nL {} "$work/root$tools"
    printf '#!/bin/sh\nexec %s/ld-linux-x86-64.so.2 --library-path %s %s/%s "$@"\n' \
        "$tools" "$tools" "$tools" "$tool" >"$work/root/usr/sbin/$tool"
    chmod +x "$work/root/usr/sbin/$tool"
done

pack root "$work" root
