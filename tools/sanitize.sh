#!/bin/bash
# Runs the tests of the runtime, which are all of its unsafe code, under a sanitizer, on the Vulkan driver at hand:
#
#     tools/sanitize.sh [address|thread] [TEST…]
#
# Needs `rustup component add --toolchain nightly rust-src`: the standard library is built with the sanitizer, too. The driver is not: what is
# only its own is suppressed below. JVC_RUNNER may name a program that starts the tests (a driver with system libraries of its own).
set -euo pipefail
cd "$(dirname "$0")/.."
sanitizer=${1:-address}
[ $# -gt 0 ] && shift
host=$(rustc -vV | sed -n 's/^host: //p')
suppressions=$(mktemp)
trap 'rm -f "$suppressions"' EXIT
# Drivers, the code that they make at run time, and the layer synchronise by means that the sanitizer does not see, and keep memory.
kinds=leak
[ "$sanitizer" = thread ] && kinds='race thread mutex signal'
for kind in $kinds; do
    printf "$kind:%s\n" libvulkan libLLVM libVkLayer libstdc++
done > "$suppressions"
export RUSTFLAGS="-Zsanitizer=$sanitizer" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/sanitize-$sanitizer"
# Behind a runner the tests look like a part of its dynamic linker, whose own leaks could not be told from theirs.
export ASAN_OPTIONS=detect_leaks=$([ -z "${JVC_RUNNER:-}" ] && echo 1 || echo 0) LSAN_OPTIONS="suppressions=$suppressions" TSAN_OPTIONS="suppressions=$suppressions:ignore_noninstrumented_modules=1"
upper=$(echo "$host" | tr 'a-z-' 'A-Z_')
[ -n "${JVC_RUNNER:-}" ] && export "CARGO_TARGET_${upper}_RUNNER=$JVC_RUNNER"
cargo +nightly test -Zbuild-std --target "$host" -p jvc-runtime --test gpu -- --test-threads=2 "$@"
