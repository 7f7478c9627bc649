#!/bin/bash
# Usage: models/deepfilternet/try.sh NOISY.wav [ENHANCED.wav]
# Removes the noise from a recording, from a clean clone: builds jvc, compiles DeepFilterNet3 (its weights are here) for the
# device found, builds the program, runs it. The last line is the path of the enhanced recording.
. "$(dirname "${BASH_SOURCE[0]}")/../try.sh.inc"
begin "$@"
output=${2:-${input%.*}-enhanced.wav}
compile deepfilternet3_step "$model/deepfilternet3_step.pt2"
build_program deepfilternet
run_program "$input" -o "$output"
result "$output"
