#!/bin/sh
# Times kernels and whole models beside PyTorch on this machine's GPU, checks every result, and writes bench.md and bench.json.
# Needs a GPU with CUDA and Vulkan, Python with torch, safetensors and nvidia-ml-py, and a jvc binary; no Rust.
#   docs/benchmarks/run.sh target/release/jvc --out results --graphs graphs/*.model.json.gz
exec python3 "$(dirname "$0")/bench" "$@"
