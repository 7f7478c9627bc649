#!/bin/bash
# Usage: models/depth_anything/try.sh PICTURE [DEPTH.png [OPTION...]]
# Depth of a picture, from a clean clone: builds jvc, exports Depth Anything V2 Small, compiles it for the device found, builds
# the program, runs it (with further options, as --side 266, which is quicker on a CPU). The last line is the path of the depth.
# Environment: CHECKPOINT, a folder or file with the weights; by default transformers downloads them. CHECKPOINT=random makes
# them up, for a try without weights: the depth means nothing.
. "$(dirname "${BASH_SOURCE[0]}")/../try.sh.inc"
begin "$@"
output=$(cd "$caller" && realpath -m -- "${2:-${input%.*}-depth.png}")
checkpoint=${CHECKPOINT:-depth-anything/Depth-Anything-V2-Small-hf}
[ -e "$caller/$checkpoint" ] && checkpoint=$caller/$checkpoint
weights=(--checkpoint "$checkpoint")
[ "$checkpoint" = random ] && weights=(--random 1)
need_python torch transformers safetensors numpy PIL
timed "export" "$python" "$model/export.py" "${weights[@]}" --out "$built"
precision=f16
if on_cpu; then precision=as-exported; fi       # CPUs compute faster in f32
compile depth_anything_v2 "$built/depth_anything_v2.pt2" --precision $precision
build_program depth_anything
run_program "$input" -o "$output" --colormap spectral "${@:3}"
result "$output"
