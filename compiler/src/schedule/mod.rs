//! Fused graph → kernels in order: what is materialised, what each kernel computes, and with which tile.

pub mod beside;
pub mod fuse;
pub mod index;
pub mod inline;
pub mod interleave;
pub mod join_steps;
pub mod layout;
pub mod lower;
pub mod symtab;
pub mod tile;
pub mod tiled;
pub mod wavefront;
pub mod waves;

use crate::device::DeviceProfile;
use crate::ir::{Graph, TensorType, UserInput, UserOutput, ValueId};
use inline::{Place, Use, storage_of};
use jvc_kernels::dtype::Storage;

/// Slots of the I/O table taken by inputs; outputs follow.
pub fn n_input_slots(graph: &Graph) -> u32 {
    graph.inputs.iter().filter(|(_, i)| matches!(i, UserInput::Tensor(_))).count() as u32
}

/// Output tensors in slot order: user outputs, then the new values of mutated inputs.
pub fn output_slots(graph: &Graph) -> Vec<(u32, ValueId)> {
    let outputs = graph.outputs.iter().filter_map(|(_, o)| match o {
        UserOutput::Tensor(v) => Some(*v),
        UserOutput::Int(_) | UserOutput::Constant(_) => None,
    });
    let all = outputs.chain(graph.input_updates.iter().map(|(_, v)| *v));
    all.enumerate().map(|(i, v)| (i as u32, v)).collect()
}

/// Bytes of a tensor on a device at the symbols' upper bounds.
pub fn tensor_bytes(graph: &Graph, device: &DeviceProfile, ty: &TensorType) -> u64 {
    let n = ty.n_elems().range(&graph.ranges).max.max(0) as u64;
    let size = match storage_of(ty.dtype, device) {
        Storage::Native => u64::from(ty.dtype.size_bytes()),
        Storage::Word => 4,
    };
    n.saturating_mul(size)
}

/// Bytes behind an operand.
pub fn place_bytes(graph: &Graph, device: &DeviceProfile, u: Use) -> u64 {
    let v = match u.place {
        Place::Value(v) => v,
        Place::Output(slot) => output_slots(graph)[(slot - n_input_slots(graph)) as usize].1,
        Place::StateUpdate(i) => graph.state_updates[i as usize].1,
        // Its size is known to the plan alone.
        Place::Table => return 0,
    };
    tensor_bytes(graph, device, graph.ty(v))
}
