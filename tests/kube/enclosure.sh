#!/usr/bin/env bash
# A closed room for one test cluster: processes, mounts and network of its own.   usage: enclosure.sh STATE NAME
#
#   test ── standard input ──▶ enclosure.sh ── unshare ──▶ enclosure.sh as process 1 ◀── everything else is started into its namespaces
#                              (removes STATE and           (reads to the end of its input, then exits)
#                               the cgroups afterwards)
#
# When the test closes the pipe, or dies in whatever way, process 1 exits; the kernel then kills every process of the room, and its
# mounts, bridges, addresses and rules are gone with the last of them. So nothing is left behind, and clusters do not meet.
# Prints process 1's id, as seen from outside, when the room is ready.
set -euo pipefail
state=$1 name=$2

inside() {
    local pid folder
    read -r pid _ </proc/self/stat # /proc still shows the ids of outside
    mount -t proc proc /proc
    # Fixed paths that containerd, the CNI plugins and kubelet write to, whatever they are told.
    for folder in /run /var/lib/cni /var/lib/kubelet /var/log/containers; do
        [ -d "$folder" ] || mkdir -p "$folder"
        mount -t tmpfs tmpfs "$folder"
    done
    ip link set lo up
    sysctl -qw net.ipv4.ip_forward=1 # pods of two nodes reach each other through the room
    echo "$pid"
    read -r _ || true
}

if [ "${3:-}" = inside ]; then
    inside
    exit
fi
trap '' INT TERM HUP # the pipe alone says when it ends
unshare --pid --fork --kill-child --mount --net "$0" "$state" "$name" inside || true
for _ in 1 2 3 4 5 6 7 8 9 10; do # a cgroup can be removed a moment after its last process
    find /sys/fs/cgroup -depth -type d -path "*/$name*" -exec rmdir {} + 2>/dev/null || true
    [ -z "$(find /sys/fs/cgroup -type d -name "$name" 2>/dev/null)" ] && break
    sleep 0.2
done
if [ -e "$state/keep" ]; then echo "the cluster's files are kept in $state" >&2; else rm -rf --one-file-system "$state"; fi
