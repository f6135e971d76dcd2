#!/usr/bin/env bash
# Fuzzes the parsers of outside input with libFuzzer: builds rljob-fuzz with coverage
# instrumentation (stable Rust) in target/fuzz and runs each target for its share of the time.
#
# New inputs are collected in target/fuzz/corpus; an input that fails is left in
# target/fuzz/failures. Once it is fixed, it belongs to fuzz/seeds/TARGET.
#
# usage: FUZZ_MINUTES=10 fuzz.sh [TARGET ...]
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${FUZZ_MINUTES:-10}
triple=$(rustc -vV | sed -n 's/^host: //p')
folder=$PWD/target/fuzz
targets=("$@")
[ $# -gt 0 ] || targets=($(ls fuzz/seeds))

# Edge counters, traced comparisons and the table of edges, as `cargo fuzz` sets them. The flags
# apply to the target only, not to build scripts, because the target is named.
flags=(-Cpasses=sancov-module -Ccodegen-units=1)
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    flags+=("-Cllvm-args=-sanitizer-coverage-$option")
done
RUSTFLAGS="${flags[*]}" CARGO_TARGET_DIR=$folder cargo build --locked --package rljob-fuzz \
    --bin rljob-fuzz --features libfuzzer --profile fuzz --target "$triple"

seconds=$((minutes * 60 / ${#targets[@]}))
# Inputs are written to files: in memory, if there is such a folder.
[ ! -d /dev/shm ] || export TMPDIR=/dev/shm
mkdir -p "$folder/failures"
failed=0
for target in "${targets[@]}"; do
    mkdir -p "$folder/corpus/$target"
    echo "fuzz $target: $seconds s"
    log=$folder/$target.log
    if FUZZ_TARGET=$target "$folder/$triple/fuzz/rljob-fuzz" \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096 -verbosity=1 \
        -print_final_stats=1 -artifact_prefix="$folder/failures/$target-" \
        "$folder/corpus/$target" "fuzz/seeds/$target" >"$log" 2>&1; then
        sed -n 's/^stat::number_of_executed_units: */    inputs /p' "$log"
    else
        failed=$((failed + 1))
        tail -40 "$log"
    fi
done
echo "$((${#targets[@]} - failed)) passed, $failed failed"
[ "$failed" = 0 ]
