#!/usr/bin/env bash
# Runs the sandbox of one test cluster: PID, mount and network namespaces.
#
#   test ── stdin ──▶ sandbox.sh ── unshare ──▶ sandbox.sh as process 1 ◀── nsenter of all programs
#                     (removes STATE and          (exits at the end
#                      cgroups afterwards)         of its input)
#
# When the test closes the pipe or exits, process 1 exits too. The kernel then kills every process
# of the sandbox and removes its mounts, bridges, addresses and rules, so that nothing remains and
# clusters are isolated from each other. Prints the host PID of process 1 once the sandbox is ready.
#
# usage: sandbox.sh STATE NAME
set -euo pipefail
state=$1 name=$2

inside() {
    local pid folder
    read -r pid _ </proc/self/stat # /proc is still that of the host
    mount -t proc proc /proc
    # Fixed paths of containerd, the CNI plugins and kubelet, which no option changes.
    for folder in /run /var/lib/cni /var/lib/kubelet /var/log/containers; do
        [ -d "$folder" ] || mkdir -p "$folder"
        mount -t tmpfs tmpfs "$folder"
    done
    ip link set lo up
    sysctl -qw net.ipv4.ip_forward=1 # routes packets between the pods of two nodes
    echo "$pid"
    read -r _ || true
}

if [ "${3:-}" = inside ]; then
    inside
    exit
fi
trap '' INT TERM HUP # only the end of the pipe ends the sandbox
unshare --pid --fork --kill-child --mount --net bash "$0" "$state" "$name" inside || true
for _ in 1 2 3 4 5 6 7 8 9 10; do # a cgroup can be removed a moment after its last process
    find /sys/fs/cgroup -depth -type d -path "*/$name*" -exec rmdir {} + 2>/dev/null || true
    [ -z "$(find /sys/fs/cgroup -type d -name "$name" 2>/dev/null)" ] && break
    sleep 0.2
done
if [ -e "$state/keep" ]; then
    echo "keeping the cluster's files in $state" >&2
else
    rm -rf --one-file-system "$state"
fi
