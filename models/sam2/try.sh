#!/bin/bash
# Usage: models/sam2/try.sh IMAGE [CLICK] [--checkpoint FILE_OR_FOLDER] [--size SIZE] [--half]
# Cuts the object at CLICK (x,y as shares of the sides, default 0.5,0.5) out of a picture, from a clean clone: builds jvc, exports
# SAM 2.1 (with made-up weights where no checkpoint is given: the mask then means nothing), compiles it for the device found,
# builds the program, runs it. The last line is the path of the picture with the mask over it. SIZE: tiny, small, base_plus or large
# (the default; made-up weights on a CPU driver are tiny ones, which take a minute or two there).
. "$(dirname "${BASH_SOURCE[0]}")/../try.sh.inc"
begin "$@"
shift
click=0.5,0.5 checkpoint='' size='' options=()
while [ $# -gt 0 ]; do
    case $1 in
        --checkpoint) checkpoint=$(cd "$caller" && realpath -- "$2"); shift 2 ;;
        --size) size=$2; shift 2 ;;
        --half) options=(--precision f16); shift ;;
        *) click=$1; shift ;;
    esac
done
if [ -z "$size" ]; then
    size=large
    if [ -z "$checkpoint" ] && on_cpu; then size=tiny; say "no checkpoint and no GPU: --size tiny"; fi
fi
need_python torch transformers numpy
if [ -n "$checkpoint" ]; then source=(--checkpoint "$checkpoint"); else source=(--random 1); fi
timed "export" "$python" "$model/export.py" "${source[@]}" --size "$size" --out "$built"
programs=()
for entry in encode decode upscale mask_prompt memory_encoder memory_attention; do programs+=("$built/$entry.pt2"); done
compile sam2_net "${programs[@]}" "${options[@]}"
build_program sam2
output=${input%.*}-overlay.png
run_program "$input" --click="$click" -o "${input%.*}-mask.png" --overlay "$output"
result "$output"
