//! Steps of `conv_block`: 4 dispatches, 3 barriers.

use crate::kernels as k;
use jvc_runtime::{Base, Groups, Recorder};

/// Records every step, in order.
pub(super) fn record(r: &mut Recorder<'_>) {
    r.step_label("silu");
    r.dispatch(
        k::MATMUL_1X63X8_3_3_3_F32_REGISTERS_8X1_F32_E884EE92,
        &[Base::Arena(0), Base::Weights(0), Base::IoTable],
        &[0, 0, 64, 0],
        Groups::Fixed([8, 1, 1]),
    );
    r.barrier();
    r.step_label("relu");
    r.dispatch(
        k::ROW_1_8_7_9_1_3_3_T1_F32_34088BC8,
        &[Base::Arena(0), Base::Weights(0)],
        &[0, 80, 112, 128],
        Groups::Fixed([8, 1, 1]),
    );
    r.barrier();
    r.step_label("add");
    r.dispatch(
        k::MATMUL_1X63X8_8_1_1_F32_REGISTERS_8X1_F32_121DA288,
        &[Base::Arena(0), Base::Weights(0), Base::IoTable],
        &[128, 128, 144, 0, 256, 1],
        Groups::Fixed([8, 1, 1]),
    );
    r.barrier();
    r.step_label("mean.2");
    r.dispatch(
        k::ROW_1_8_7_9_T1_F32_E83FB464,
        &[Base::Arena(0), Base::IoTable],
        &[256, 2],
        Groups::Fixed([1, 1, 1]),
    );
}
