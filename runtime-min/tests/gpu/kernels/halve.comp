// symbols[0] /= 2, and the group counts behind it follow: a size that the device computes.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "address.glsl"
layout(push_constant) uniform Push { uvec2 symbols; };
void main() {
    if (gl_GlobalInvocationID.x != 0) return;
    uint n = Words(symbols).at[0] / 2;
    Words(symbols).at[0] = n;
    Words(symbols).at[1] = (n + 63) / 64;
}
