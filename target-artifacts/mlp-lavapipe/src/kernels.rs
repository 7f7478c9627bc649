//! Kernels: `.spv` is what runs, `.spvasm` beside it is its text, for review; `plan.txt` has their specs.

use jvc_runtime::KernelDesc;

/// Every kernel, at the index that its constant names.
pub(crate) static KERNELS: [KernelDesc<'static>; 2] = [
    kernel(
        "matmul_1x2x7_5_f32_registers_2x1_f32_8f5cb48e",
        include_bytes!("../kernels/matmul_1x2x7_5_f32_registers_2x1_f32_8f5cb48e.spv"),
        3,
        4,
        0,
    ),
    kernel(
        "matmul_1x2x3_7_f32_registers_2x1_f32_3562a2a7",
        include_bytes!("../kernels/matmul_1x2x3_7_f32_registers_2x1_f32_3562a2a7.spv"),
        3,
        4,
        0,
    ),
];

pub(crate) const MATMUL_1X2X7_5_F32_REGISTERS_2X1_F32_8F5CB48E: u32 = 0;
pub(crate) const MATMUL_1X2X3_7_F32_REGISTERS_2X1_F32_3562A2A7: u32 = 1;

const fn kernel(
    name: &'static str,
    code: &'static [u8],
    n_bases: u8,
    n_operands: u8,
    subgroup: u32,
) -> KernelDesc<'static> {
    KernelDesc { name, code, n_bases, n_operands, subgroup }
}
