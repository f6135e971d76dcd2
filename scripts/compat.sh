#!/bin/sh
# Runs jobs with processes of two releases: this tree's programs, and those of COMPAT_REF, the
# release before.
#
#   compat.sh [PROGRAMS]      PROGRAMS: folder of this tree's binaries, default target/debug
#
# Builds the other release in a worktree under $XDG_CACHE_HOME/rljob/compat, which later calls
# reuse. Each case is a folder of programs of both releases and a `rljob run` of a few steps in it:
#
#   new coordinator under the other release's CLI, engine, supervisor and learner
#   new supervisor and learner under the other release's CLI, engine and coordinator
#   other release's coordinator under this tree's CLI
#
# Each must finish, or say why not: releases before TLS between processes do not work with later
# ones.
#
# The last line of the output is `compat: REF, 3 cases passed`.
set -eu

# Release 0.1.
ref=${COMPAT_REF:-6666de9}
root=$(cd "$(dirname "$0")/.." && pwd)
new=${1:-$root/target/debug}
commit=$(git -C "$root" rev-parse --short=12 "$ref^{commit}")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rljob/compat
tree=$cache/$commit
old=$cache/target/debug

if [ ! -d "$tree" ]; then
    mkdir -p "$cache"
    git -C "$root" worktree prune
    git -C "$root" worktree add --detach "$tree" "$commit"
fi
ln -sfn "$root/.libtorch" "$tree/.libtorch"
echo "compat: building $ref in $tree"
(
    cd "$tree"
    CARGO_TARGET_DIR=$cache/target cargo build --locked --bins \
        --package rljob-operator --package rljob-coordinator \
        --package rljob-learner --package rljob-engine
)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Programs find libtorch two folders above their own.
ln -s "$root/.libtorch" "$work/.libtorch"
for release in old new; do
    [ "$release" = old ] && source=$tree || source=$root
    mkdir "$work/$release"
    cp -r "$source/manifests/samples/." "$work/$release"
    python3 "$work/$release/quickstart/make_data.py" "$work/$release/quickstart/data"
done

# case NAME SAMPLES PROGRAM=RELEASE...
run() {
    name=$1 samples=$2
    shift 2
    mkdir -p "$work/$name/bin"
    for program in "$@"; do
        eval "folder=\$${program#*=}"
        # Copies: a program finds the others beside its own file, links resolved.
        cp "$folder/${program%=*}" "$work/$name/bin/"
    done
    OMP_NUM_THREADS=1 timeout 300 "$work/$name/bin/rljob" run \
        -f "$work/$samples/quickstart.yaml" --dir "$work/$name/runs" \
        --set spec.training.steps=4 --set spec.optimizer.warmupSteps=0 >"$work/$name/log" 2>&1
}

failed() {
    tail -40 "$work/$1/log"
    for log in "$work/$1"/runs/*/*/logs/*; do
        [ -f "$log" ] && echo "--- $log" && tail -20 "$log"
    done
    echo "compat: $1 failed"
    exit 1
}

# Whether the programs of case NAME have said why they do not work together.
says_why() {
    grep -rqE 'ProtocolUnsupported|/tls-(coordinator|trainer)\.pem' "$work/$1/log" \
        "$work/$1"/runs/*/*/logs
}

run new-coordinator old rljob=old rljob-engine=old rljob-supervisor=old rljob-learner=old \
    rljob-coordinator=new || says_why new-coordinator || failed new-coordinator
echo "compat: new-coordinator passed"
run new-learner old rljob=old rljob-engine=old rljob-coordinator=old rljob-supervisor=new \
    rljob-learner=new || says_why new-learner || failed new-learner
echo "compat: new-learner passed"
run old-coordinator new rljob=new rljob-engine=new rljob-supervisor=new rljob-learner=new \
    rljob-coordinator=old || says_why old-coordinator || failed old-coordinator
echo "compat: old-coordinator passed"
echo "compat: $ref, 3 cases passed"
