#!/bin/bash
# Fuzzes every target of fuzz/ for so many minutes each (30 where none are given), then runs the pure crates under Miri:
#
#     tools/fuzz.sh [MINUTES] [TARGET…]      or, Miri alone:      tools/fuzz.sh miri
#
# Needs a nightly toolchain and `cargo install cargo-fuzz`; Miri needs `rustup component add --toolchain nightly miri rust-src` and is
# left out without. What the fuzzers learn stays in fuzz/corpus, inputs that crash in fuzz/artifacts: see docs/robustness.md.
# SANITIZER=address (or thread, …) builds with that sanitizer; without, since the parsers have no unsafe code, more inputs are tried.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
minutes=${1:-30}
[ $# -gt 0 ] && shift
targets=("$@")
sanitizer=${SANITIZER:-none}
logs=fuzz/logs
failed=0
mkdir -p $logs
# The cache's target writes a file for each input.
[ -w /dev/shm ] && export TMPDIR=/dev/shm

if [ "$minutes" != miri ]; then
    cargo +nightly fuzz build --sanitizer "$sanitizer" -O -a || exit 1
    [ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cargo +nightly fuzz list)
    for target in "${targets[@]}"; do
        mkdir -p "fuzz/corpus/$target"
        cargo +nightly fuzz run --sanitizer "$sanitizer" -O -a "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
            -max_total_time=$((minutes * 60)) -timeout=10 -rss_limit_mb=1024 -max_len=32768 -print_final_stats=1 > "$logs/$target.log" 2>&1
        status=$?
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$logs/$target.log")
        printf '%-12s %10s inputs in %s min: %s\n' "$target" "${runs:-?}" "$minutes" "$([ $status = 0 ] && echo clean || echo "see $logs/$target.log")"
        [ $status = 0 ] || failed=1
    done
fi

# Miri checks what the compiler may assume: bounds of slices, overflow, leaks. No file system and no device below it.
if cargo +nightly miri --version > /dev/null 2>&1; then
    export MIRIFLAGS=-Zmiri-disable-isolation
    cargo +nightly miri test -p jvc-files > $logs/miri-files.log 2>&1 && echo 'miri: jvc-files clean' || { echo "miri: see $logs/miri-files.log"; failed=1; }
    cargo +nightly miri test -p jvc-codegen --lib > $logs/miri-codegen.log 2>&1 && echo 'miri: jvc-codegen clean' || { echo "miri: see $logs/miri-codegen.log"; failed=1; }
else
    echo 'miri: left out (rustup component add --toolchain nightly miri rust-src)'
fi
exit $failed
