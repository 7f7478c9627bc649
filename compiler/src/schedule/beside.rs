//! Maps whose results are stored by the kernel of the value that they read, beside it: an activation before a convolution, of a value that
//! something else needs, too (residual units). Inlined, the convolution would compute it again at each tap, and could not take its operand
//! by blocks; a kernel of its own would read the value once more.

use super::fuse::{Fusion, GroupKind};
use super::layout::{MIN_OUTPUTS, has_blocks};
use crate::device::DeviceProfile;
use crate::ir::{Graph, Node, NodeId, Op, ValueId};

/// Marks such maps of a graph.
pub fn choose(graph: &Graph, fusion: &mut Fusion, device: &DeviceProfile) {
    let fills = device.cooperative.iter().any(|c| c.left.is_some() && c.right.is_some());
    if device.rates.cpu || !fills {
        return;
    }
    let mut wanted = vec![false; graph.values.len()];
    for node in &graph.nodes {
        if let Some(v) = read_by_blocks(graph, node) {
            wanted[v.0 as usize] = true;
        }
    }
    for (i, node) in graph.nodes.iter().enumerate() {
        let (Op::Map(_), &[from], &[v]) = (&node.op, &node.inputs[..], &node.outputs[..]) else { continue };
        let same = graph.ty(from).shape == graph.ty(v).shape && graph.ty(from).dtype == graph.ty(v).dtype;
        let id = NodeId(i as u32);
        if wanted[v.0 as usize] && same && is_inlined(graph, fusion, id) && stores(graph, fusion, from) {
            fusion.store_beside(from, id, v);
        }
    }
}

/// The operand of a convolution on matrix units that takes it by blocks of channels.
fn read_by_blocks(graph: &Graph, node: &Node) -> Option<ValueId> {
    let of = match node.op {
        Op::Conv { groups: 1, .. } => 0,
        Op::ConvTranspose { groups: 1, .. } => 1,
        _ => return None,
    };
    let outputs = graph.ty(node.inputs[1]).shape[of].as_const()?;
    (outputs >= MIN_OUTPUTS && has_blocks(graph, node.inputs[0], 1)).then_some(node.inputs[0])
}

/// Every reader computes it again.
fn is_inlined(graph: &Graph, fusion: &Fusion, id: NodeId) -> bool {
    let in_epilogue = |kind: &GroupKind| matches!(kind, GroupKind::Anchor { epilogue, .. } if epilogue.contains(&id));
    !fusion.in_memory(graph, graph.node(id).outputs[0]) && !fusion.groups.iter().any(|g| in_epilogue(&g.kind))
}

/// A kernel that stores the value by coordinates alone has it at hand.
fn stores(graph: &Graph, fusion: &Fusion, v: ValueId) -> bool {
    let by_coordinates = |kind: &GroupKind| match kind {
        GroupKind::Map => true,
        GroupKind::Anchor { node, .. } => {
            matches!(graph.node(*node).op, Op::Conv { .. } | Op::ConvTranspose { .. } | Op::Matmul)
        }
        _ => false,
    };
    let own = fusion.groups.iter().find(|g| g.result == v && fusion.has_buffer(v));
    own.is_some_and(|g| by_coordinates(&g.kind))
}
