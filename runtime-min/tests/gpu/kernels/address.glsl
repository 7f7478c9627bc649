// Addresses as the compiler forms them: a 64-bit base in a uvec2 plus an offset in units of 16 bytes.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64) in;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Addresses { uvec2 at[]; };
uvec2 shifted(uvec2 base, uint offset) {
    uint carry;
    uint low = uaddCarry(base.x, offset << 4, carry);
    return uvec2(low, base.y + (offset >> 28) + carry);
}
