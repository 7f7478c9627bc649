//! Kernels: `.spv` is what runs, `.spvasm` beside it is its text, for review; `plan.txt` has their specs.

use jvc_runtime::{KernelDesc, Spirv};

/// Every kernel, at the index that its constant names.
pub(crate) static KERNELS: [KernelDesc<'static>; 10] = [
    kernel(
        "matmul_1x2x4_4_f32_shared_32x32x16_2x2_f32_7911a131",
        include_bytes!("../kernels/matmul_1x2x4_4_f32_shared_32x32x16_2x2_f32_7911a131.spv"),
        3,
        4,
        0,
    ),
    kernel(
        "matmul_1x2x4_4_f32_shared_32x32x16_2x2_f32_c51f2f8f",
        include_bytes!("../kernels/matmul_1x2x4_4_f32_shared_32x32x16_2x2_f32_c51f2f8f.spv"),
        3,
        4,
        0,
    ),
    kernel(
        "matmul_1x2x4_4_f32_shared_32x32x16_2x2_f32_a81de228",
        include_bytes!("../kernels/matmul_1x2x4_4_f32_shared_32x32x16_2x2_f32_a81de228.spv"),
        3,
        4,
        0,
    ),
    kernel(
        "matmul_1x2x4_4_f32_shared_32x32x16_2x2_f32_393d5126",
        include_bytes!("../kernels/matmul_1x2x4_4_f32_shared_32x32x16_2x2_f32_393d5126.spv"),
        3,
        4,
        0,
    ),
    kernel(
        "matmul_1x2x4_4_f32_shared_32x32x16_2x2_f32_9700d0ba",
        include_bytes!("../kernels/matmul_1x2x4_4_f32_shared_32x32x16_2x2_f32_9700d0ba.spv"),
        3,
        5,
        0,
    ),
    kernel(
        "map_1_2_4_x1_f32_60f11942",
        include_bytes!("../kernels/map_1_2_4_x1_f32_60f11942.spv"),
        2,
        2,
        0,
    ),
    kernel(
        "map_1_2_4_x1_f32_69c0fde0",
        include_bytes!("../kernels/map_1_2_4_x1_f32_69c0fde0.spv"),
        2,
        2,
        0,
    ),
    kernel(
        "map_1_2_4_x1_f32_d6082100",
        include_bytes!("../kernels/map_1_2_4_x1_f32_d6082100.spv"),
        2,
        2,
        0,
    ),
    kernel(
        "map_1_2_4_x1_f32_158f9173",
        include_bytes!("../kernels/map_1_2_4_x1_f32_158f9173.spv"),
        2,
        2,
        0,
    ),
    kernel(
        "map_1_2_4_x1_f32_d6ccded2",
        include_bytes!("../kernels/map_1_2_4_x1_f32_d6ccded2.spv"),
        2,
        2,
        0,
    ),
];

pub(crate) const MATMUL_1X2X4_4_F32_SHARED_32X32X16_2X2_F32_7911A131: u32 = 0;
pub(crate) const MATMUL_1X2X4_4_F32_SHARED_32X32X16_2X2_F32_C51F2F8F: u32 = 1;
pub(crate) const MATMUL_1X2X4_4_F32_SHARED_32X32X16_2X2_F32_A81DE228: u32 = 2;
pub(crate) const MATMUL_1X2X4_4_F32_SHARED_32X32X16_2X2_F32_393D5126: u32 = 3;
pub(crate) const MATMUL_1X2X4_4_F32_SHARED_32X32X16_2X2_F32_9700D0BA: u32 = 4;
pub(crate) const MAP_1_2_4_X1_F32_60F11942: u32 = 5;
pub(crate) const MAP_1_2_4_X1_F32_69C0FDE0: u32 = 6;
pub(crate) const MAP_1_2_4_X1_F32_D6082100: u32 = 7;
pub(crate) const MAP_1_2_4_X1_F32_158F9173: u32 = 8;
pub(crate) const MAP_1_2_4_X1_F32_D6CCDED2: u32 = 9;

const fn kernel(
    name: &'static str,
    spirv: &'static [u8],
    n_bases: u8,
    n_operands: u8,
    subgroup: u32,
) -> KernelDesc<'static> {
    KernelDesc { name, code: Spirv::Bytes(spirv), n_bases, n_operands, subgroup }
}
