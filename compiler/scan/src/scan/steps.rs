//! Steps of `scan`: 10 dispatches, 8 barriers.

use crate::kernels as k;
use jvc_runtime::{Base, Groups, Recorder};

/// Records every step, in order.
pub(super) fn record(r: &mut Recorder<'_>) {
    r.step_label("scan.0.tanh");
    r.dispatch(
        k::MATMUL_1X2X4_4_F32_SHARED_32X32X16_2X2_F32_7911A131,
        &[Base::Arena(0), Base::Weights(0), Base::IoTable],
        &[1, 0, 0, 0],
        Groups::Fixed([1, 1, 1]),
    );
    r.barrier();
    r.step_label("scan.1.tanh");
    r.dispatch(
        k::MATMUL_1X2X4_4_F32_SHARED_32X32X16_2X2_F32_C51F2F8F,
        &[Base::Arena(0), Base::Weights(0), Base::IoTable],
        &[0, 0, 0, 16],
        Groups::Fixed([1, 1, 1]),
    );
    r.barrier();
    r.step_label("scan.2.tanh");
    r.dispatch(
        k::MATMUL_1X2X4_4_F32_SHARED_32X32X16_2X2_F32_A81DE228,
        &[Base::Arena(0), Base::Weights(0), Base::IoTable],
        &[16, 0, 0, 32],
        Groups::Fixed([1, 1, 1]),
    );
    r.barrier();
    r.step_label("scan.3.tanh");
    r.dispatch(
        k::MATMUL_1X2X4_4_F32_SHARED_32X32X16_2X2_F32_393D5126,
        &[Base::Arena(0), Base::Weights(0), Base::IoTable],
        &[32, 0, 0, 48],
        Groups::Fixed([1, 1, 1]),
    );
    r.barrier();
    r.step_label("scan.4.tanh");
    r.dispatch(
        k::MATMUL_1X2X4_4_F32_SHARED_32X32X16_2X2_F32_9700D0BA,
        &[Base::Arena(0), Base::Weights(0), Base::IoTable],
        &[48, 0, 0, 64, 2],
        Groups::Fixed([1, 1, 1]),
    );
    r.step_label("scan.4.mul.6");
    r.dispatch(
        k::MAP_1_2_4_X1_F32_60F11942,
        &[Base::Arena(0), Base::IoTable],
        &[0, 3],
        Groups::Fixed([1, 1, 1]),
    );
    r.barrier();
    r.step_label("scan.4.mul.6");
    r.dispatch(
        k::MAP_1_2_4_X1_F32_69C0FDE0,
        &[Base::Arena(0), Base::IoTable],
        &[16, 3],
        Groups::Fixed([1, 1, 1]),
    );
    r.barrier();
    r.step_label("scan.4.mul.6");
    r.dispatch(
        k::MAP_1_2_4_X1_F32_D6082100,
        &[Base::Arena(0), Base::IoTable],
        &[32, 3],
        Groups::Fixed([1, 1, 1]),
    );
    r.barrier();
    r.step_label("scan.4.mul.6");
    r.dispatch(
        k::MAP_1_2_4_X1_F32_158F9173,
        &[Base::Arena(0), Base::IoTable],
        &[48, 3],
        Groups::Fixed([1, 1, 1]),
    );
    r.barrier();
    r.step_label("scan.4.mul.6");
    r.dispatch(
        k::MAP_1_2_4_X1_F32_D6CCDED2,
        &[Base::Arena(0), Base::IoTable],
        &[64, 3],
        Groups::Fixed([1, 1, 1]),
    );
}
