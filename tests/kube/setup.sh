#!/usr/bin/env bash
# Installs the requirements of test clusters: Debian packages of nodes, and Kubernetes.
#
# usage: setup.sh
set -euo pipefail
cd "$(dirname "$0")"
../../scripts/packages.sh containerd=containerd ctr=containerd runc=runc \
    /usr/lib/cni/bridge=containernetworking-plugins iptables=iptables ip=iproute2 openssl=openssl \
    sysctl=procps unshare=util-linux nsenter=util-linux strip=binutils tar=tar find=findutils \
    pgrep=procps
./build.sh >/dev/null
