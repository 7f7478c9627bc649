// The bindings form of an addition: one storage buffer per operand, the symbol table last.
#version 460
layout(local_size_x = 64) in;
layout(std430, set = 0, binding = 0) readonly buffer A { float a[]; };
layout(std430, set = 0, binding = 1) readonly buffer B { float b[]; };
layout(std430, set = 0, binding = 2) buffer C { float c[]; };
layout(std430, set = 0, binding = 3) readonly buffer Symbols { uint symbols[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < symbols[0]) c[i] = a[i] + b[i];
}
