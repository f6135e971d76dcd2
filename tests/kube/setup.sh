#!/usr/bin/env bash
# Everything that the test cluster needs on this machine: Debian packages for nodes, and Kubernetes itself.   usage: setup.sh
set -euo pipefail
cd "$(dirname "$0")"
../../scripts/packages.sh containerd=containerd ctr=containerd runc=runc /usr/lib/cni/bridge=containernetworking-plugins iptables=iptables \
    ip=iproute2 openssl=openssl sysctl=procps unshare=util-linux nsenter=util-linux strip=binutils tar=tar find=findutils pgrep=procps
./build.sh >/dev/null
