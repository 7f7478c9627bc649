// The bindings form of a size that the device computes: as halve.comp.
#version 460
layout(local_size_x = 64) in;
layout(std430, set = 0, binding = 0) buffer Symbols { uint symbols[]; };
void main() {
    if (gl_GlobalInvocationID.x != 0) return;
    uint n = symbols[0] / 2;
    symbols[0] = n;
    symbols[1] = (n + 63) / 64;
}
