#!/bin/bash
# Usage: models/deepfilternet/try.sh NOISY.wav [ENHANCED.wav [OPTION...]]
# Removes the noise from a recording, from a clean clone: builds jvc, compiles DeepFilterNet3 (its weights are here) for the
# device found, builds the program, runs it. The last line is the path of the enhanced recording.
. "$(dirname "${BASH_SOURCE[0]}")/../try.sh.inc"
begin "$@"
output=$(cd "$caller" && realpath -m -- "${2:-${input%.*}-enhanced.wav}")
zstd -dqf --long=27 --patch-from="$model/deepfilternet3_step.pt2" "$model/deepfilternet3_stream.pt2.zst" \
    -o "$built/deepfilternet3_stream.pt2"
compile deepfilternet3_stream "$built/deepfilternet3_stream.pt2"
build_program deepfilternet
run_program "$input" -o "$output" "${@:3}"
result "$output"
