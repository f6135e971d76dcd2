#!/usr/bin/env bash
# Installs Debian packages, but only for what is missing.   usage: packages.sh WHAT=PACKAGE ...
# WHAT is a program's name, or the absolute path of a file or folder that the package brings.
set -euo pipefail
missing=()
for pair in "$@"; do
    what=${pair%%=*} package=${pair#*=}
    case $what in
    /*) [ -e "$what" ] || missing+=("$package") ;;
    *) PATH=$PATH:/usr/sbin:/sbin command -v "$what" >/dev/null || missing+=("$package") ;;
    esac
done
[ ${#missing[@]} -gt 0 ] || exit 0
command -v apt-get >/dev/null || { echo "setup: please install what Debian calls: ${missing[*]}" >&2; exit 1; }
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
echo "setup: installing ${missing[*]}" >&2
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >&2
