#!/usr/bin/env bash
# Builds an image twice from the same programs and compares the digests, which differ if a build
# puts times, random names or an order of its own into the image.
#
# usage: image_repeat.sh IMAGE PROGRAMS FOLDER
#
# Folders of the builds are removed. The environment is that of image.sh.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
image=$1 programs=$2
mkdir -p "$3"
work=$(mktemp -d "$3/.repeat.XXXXXX")
trap 'rm -rf "$work"' EXIT
first=$(bash "$root/scripts/image.sh" "$image" "$programs" "$work/first" | tail --lines 1)
second=$(bash "$root/scripts/image.sh" "$image" "$programs" "$work/second" | tail --lines 1)
if [ "$first" != "$second" ] || ! cmp "$work/first/$image.tar" "$work/second/$image.tar"; then
    echo "image_repeat.sh: two builds differ: $first and $second" >&2
    exit 1
fi
echo "$first twice"
