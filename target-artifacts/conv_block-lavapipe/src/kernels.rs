//! Kernels: `.spv` is what runs, `.spvasm` beside it is its text, for review; `plan.txt` has their specs.

use jvc_runtime::KernelDesc;

/// Every kernel, at the index that its constant names.
pub(crate) static KERNELS: [KernelDesc<'static>; 4] = [
    kernel(
        "matmul_1x63x8_3_3_3_f32_registers_8x1_f32_e884ee92",
        include_bytes!("../kernels/matmul_1x63x8_3_3_3_f32_registers_8x1_f32_e884ee92.spv"),
        3,
        4,
        0,
    ),
    kernel(
        "row_1_8_7_9_1_3_3_t1_f32_34088bc8",
        include_bytes!("../kernels/row_1_8_7_9_1_3_3_t1_f32_34088bc8.spv"),
        2,
        4,
        0,
    ),
    kernel(
        "matmul_1x63x8_8_1_1_f32_registers_8x1_f32_121da288",
        include_bytes!("../kernels/matmul_1x63x8_8_1_1_f32_registers_8x1_f32_121da288.spv"),
        3,
        6,
        0,
    ),
    kernel(
        "row_1_8_7_9_t1_f32_e83fb464",
        include_bytes!("../kernels/row_1_8_7_9_t1_f32_e83fb464.spv"),
        2,
        2,
        0,
    ),
];

pub(crate) const MATMUL_1X63X8_3_3_3_F32_REGISTERS_8X1_F32_E884EE92: u32 = 0;
pub(crate) const ROW_1_8_7_9_1_3_3_T1_F32_34088BC8: u32 = 1;
pub(crate) const MATMUL_1X63X8_8_1_1_F32_REGISTERS_8X1_F32_121DA288: u32 = 2;
pub(crate) const ROW_1_8_7_9_T1_F32_E83FB464: u32 = 3;

const fn kernel(
    name: &'static str,
    code: &'static [u8],
    n_bases: u8,
    n_operands: u8,
    subgroup: u32,
) -> KernelDesc<'static> {
    KernelDesc { name, code, n_bases, n_operands, subgroup }
}
