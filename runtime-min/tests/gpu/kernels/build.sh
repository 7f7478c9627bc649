#!/bin/sh
# Rebuilds the test kernels: needs glslang-tools and spirv-tools.
set -e
cd "$(dirname "$0")"
for source in *.comp; do
    glslangValidator -V --target-env vulkan1.2 -o "${source%.comp}.spv" "$source"
    spirv-val --target-env vulkan1.2 "${source%.comp}.spv"
done
