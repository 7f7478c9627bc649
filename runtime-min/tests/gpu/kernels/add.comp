// c[i] = a[i] + b[i] for i < symbols[0].
#version 460
#extension GL_GOOGLE_include_directive : require
#include "address.glsl"
layout(push_constant) uniform Push { uvec2 base_a; uvec2 base_b; uvec2 base_c; uvec2 symbols; uint a; uint b; uint c; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= Words(symbols).at[0]) return;
    Floats(shifted(base_c, c)).at[i] = Floats(shifted(base_a, a)).at[i] + Floats(shifted(base_b, b)).at[i];
}
