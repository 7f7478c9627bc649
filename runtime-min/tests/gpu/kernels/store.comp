// output[i] = arena[i] for i < symbols[0].
#version 460
#extension GL_GOOGLE_include_directive : require
#include "address.glsl"
layout(push_constant) uniform Push { uvec2 table; uvec2 arena; uvec2 symbols; uint slot; uint offset; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < Words(symbols).at[0]) Floats(Addresses(table).at[slot]).at[i] = Floats(shifted(arena, offset)).at[i];
}
