//! Steps of `mlp`: 2 dispatches, 1 barriers.

use crate::kernels as k;
use jvc_runtime::{Base, Groups, Recorder};

/// Records every step, in order.
pub(super) fn record(r: &mut Recorder<'_>) {
    r.step_label("relu");
    r.dispatch(
        k::MATMUL_1X2X7_5_F32_REGISTERS_2X1_F32_8F5CB48E,
        &[Base::Arena(0), Base::Weights(0), Base::IoTable],
        &[0, 0, 16, 0],
        Groups::Fixed([1, 1, 1]),
    );
    r.barrier();
    r.step_label("linear_1.3");
    r.dispatch(
        k::MATMUL_1X2X3_7_F32_REGISTERS_2X1_F32_3562A2A7,
        &[Base::Arena(0), Base::Weights(0), Base::IoTable],
        &[0, 32, 48, 1],
        Groups::Fixed([1, 1, 1]),
    );
}
