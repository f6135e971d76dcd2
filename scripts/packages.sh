#!/usr/bin/env bash
# Installs missing Debian packages. FILE is a program's name or the absolute path of a file or
# folder of the package.
#
# usage: packages.sh FILE=PACKAGE ...
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
command -v apt-get >/dev/null || {
    echo "setup: install these Debian packages: ${missing[*]}" >&2
    exit 1
}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rljob
mkdir -p "$cache"
exec 9>"$cache/.packages.lock"
flock 9 # apt-get fails while another one runs
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
echo "setup: installing ${missing[*]}" >&2
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends "${missing[@]}" >&2
