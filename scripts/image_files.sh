#!/usr/bin/env bash
# What images contain: names of Debian packages, and the files of /usr/local. `Containerfile` and
# `image.sh` read it.
#
# usage: image_files.sh packages IMAGE
#        image_files.sh local IMAGE PROGRAMS LIBRARIES FOLDER
#
# IMAGE is `operator`, `sandbox`, `tools` or `trainer`. `local` copies programs from the folder
# PROGRAMS, and libtorch from the folder LIBRARIES if they need it, to FOLDER/bin and FOLDER/lib.
set -euo pipefail
libtorch=
case $2 in
operator)
    programs=(rljob-operator rljob)
    packages=(ca-certificates)
    ;;
sandbox)
    programs=(rljob-reward-runner rljob-sandbox)
    packages=(ca-certificates g++ libstdc++6 python3) # a compiler and Python for rewards
    ;;
tools)
    programs=(rljob)
    packages=(ca-certificates python3) # Python for scripts that prepare data
    ;;
trainer)
    programs=(rljob-operator rljob rljob-coordinator rljob-reward-runner rljob-sandbox
        rljob-supervisor rljob-learner rljob-engine)
    packages=(ca-certificates g++ libstdc++6 python3) # a compiler and Python for rewards
    libtorch=yes
    ;;
*)
    echo "no image is called $2" >&2
    exit 2
    ;;
esac

case $1 in
packages)
    echo "${packages[@]}"
    ;;
local)
    mkdir -p "$5/bin"
    for name in "${programs[@]}"; do
        strip --strip-debug -o "$5/bin/$name" "$3/$name"
    done
    if [ -n "$libtorch" ]; then # the run path of the programs contains ../lib
        mkdir -p "$5/lib"
        cp --dereference "$4"/*.so* "$5/lib/"
    fi
    ;;
*)
    echo "image_files.sh cannot $1" >&2
    exit 2
    ;;
esac
