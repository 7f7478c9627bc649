//! Sizes that depend on data (`nonzero`, selection by a mask): memory is planned at the upper bound that the export gives, the elements
//! that count stand first, and an extra output says how many they are.
//!
//! An export names such a size by an unbacked symbol (`u0`). Lowering pins it to its bound, so that every shape is a literal. What lies
//! behind the elements that count is arbitrary, so a value with such a dimension may only flow where each of its elements stays by itself:
//! [`lengths`] follows the dimension through the graph and refuses everything else.

use super::cx::Cx;
use super::unsupported_shape;
use crate::ir::{Dim, Graph, Node, Op, OutputLength, Ranges, UserOutput, ValueId};
use crate::report::Diagnostic;
use jvc_kernels::expr::{Expr, ExprId, Exprs};
use std::collections::BTreeMap;

/// A dimension of which only the first elements count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounded {
    /// The dimension.
    pub(super) dim: usize,
    /// How many of its elements count: an i64 scalar.
    pub(super) count: ValueId,
}

/// Unbacked symbols with an upper bound, pinned to it. Their ranges go away.
pub(super) fn pin_to_bounds(ranges: &mut Ranges) -> BTreeMap<String, Dim> {
    let data = |name: &str| name.strip_prefix('u').is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
    let pins: BTreeMap<String, Dim> = ranges
        .iter()
        .filter(|(name, r)| data(name) && r.max < i64::from(i32::MAX))
        .map(|(name, r)| (name.clone(), Dim::from(r.max)))
        .collect();
    ranges.retain(|name, _| !pins.contains_key(name));
    pins
}

/// Follows bounded dimensions from where rules made them to the outputs; adds an output with the count of each.
pub(super) fn lengths(cx: &mut Cx) -> Vec<Diagnostic> {
    if cx.bounded.is_empty() {
        return vec![];
    }
    let graph = &cx.b.graph;
    let mut known: BTreeMap<ValueId, Bounded> = cx.bounded.clone();
    let mut problems = vec![];
    for node in &graph.nodes {
        let made_here = node.outputs.iter().any(|v| cx.bounded.contains_key(v));
        if made_here || !node.inputs.iter().any(|v| known.contains_key(v)) {
            continue;
        }
        match carried(graph, node, &known) {
            Ok(Some(b)) => known.extend(node.outputs.iter().map(|&v| (v, b))),
            Ok(None) => {}
            Err(what) => {
                let text = format!("{what} of a tensor whose size depends on data is not supported");
                let origin = &graph.origins[node.origin as usize];
                problems.push(
                    unsupported_shape(text)
                        .at(origin)
                        .with_help("only elementwise operators, masked writes and outputs are"),
                );
            }
        }
    }
    let written = graph.state_updates.iter().map(|(_, v)| v).chain(graph.input_updates.iter().map(|(_, v)| v));
    if written.into_iter().any(|v| known.contains_key(v)) {
        problems.push(unsupported_shape("state whose size depends on data is not supported"));
    }
    add_counts(&mut cx.b.graph, &known);
    problems
}

/// One more output per output with a bounded dimension: how much of it counts.
fn add_counts(graph: &mut Graph, known: &BTreeMap<ValueId, Bounded>) {
    for output in 0..graph.outputs.len() {
        let (name, UserOutput::Tensor(v)) = &graph.outputs[output] else { continue };
        let Some(b) = known.get(v) else { continue };
        let count_name = format!("{name}.len");
        graph.lengths.push(OutputLength { output, dim: b.dim, count: graph.outputs.len() });
        graph.outputs.push((count_name, UserOutput::Tensor(b.count)));
    }
}

/// The bounded dimension of a node's results, if its operands hand one on.
///
/// # Errors
/// The operation, when elements that do not count could reach ones that do.
fn carried(graph: &Graph, node: &Node, known: &BTreeMap<ValueId, Bounded>) -> Result<Option<Bounded>, &'static str> {
    let bound = |k: usize| known.get(&node.inputs[k]).copied();
    let first = (0..node.inputs.len()).find_map(bound).expect("the caller has seen one");
    match &node.op {
        Op::Map(_) => Ok(Some(first)),
        Op::Compute(body) => {
            let mut found = None;
            for id in body.exprs.reachable(&[body.root]) {
                let Expr::Load { operand, index, .. } = body.exprs.get(id) else { continue };
                let Some(b) = bound(usize::from(*operand)) else { continue };
                match body.exprs.get(index[b.dim]) {
                    Expr::Axis(k) => found = Some(Bounded { dim: usize::from(*k), ..b }),
                    // A position from data is one that the program says is there.
                    _ if reads(&body.exprs, index[b.dim]) => {}
                    _ => return Err("a rearrangement"),
                }
            }
            Ok(found)
        }
        Op::Permute(perm) => Ok(perm.iter().position(|&d| d == first.dim).map(|dim| Bounded { dim, ..first })),
        Op::Reshape(shape) => {
            let old = &graph.ty(node.inputs[0]).shape;
            let before = |s: &[Dim]| s.iter().fold(Dim::from(1), |p, d| &p * d);
            let lead = before(&old[..first.dim]);
            let place = (0..shape.len()).find(|&d| before(&shape[..d]) == lead && shape[d] == old[first.dim]);
            place.map(|dim| Some(Bounded { dim, ..first })).ok_or("a reshape")
        }
        Op::Slice { dim, .. } | Op::Concat { dim } if *dim != first.dim => Ok(Some(first)),
        Op::Slice { .. } => Err("a slice"),
        Op::Concat { .. } => Err("a concatenation"),
        Op::Broadcast(_) => Ok(Some(first)),
        Op::Reduce { dims, .. } if !dims.contains(&first.dim) => Ok(Some(first)),
        _ => Err("this use"),
    }
}

/// True if an expression depends on data.
fn reads(exprs: &Exprs, id: ExprId) -> bool {
    exprs.reachable(&[id]).iter().any(|&e| matches!(exprs.get(e), Expr::Load { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ty::DType;
    use crate::ir::{Range, TensorType};

    /// A context with an input of three rows, of which a count that is another input says how many there are.
    fn bounded_input() -> (Cx, ValueId) {
        let mut cx = Cx::new("test");
        let x = cx.b.push(Op::Input { index: 0 }, vec![], vec![TensorType::fixed(DType::F32, &[3, 2])])[0];
        let count = cx.b.push(Op::Input { index: 1 }, vec![], vec![TensorType::fixed(DType::I64, &[])])[0];
        cx.bounded.insert(x, Bounded { dim: 0, count });
        (cx, x)
    }

    fn output(cx: &mut Cx, v: ValueId) {
        cx.b.graph.outputs.push(("y".into(), UserOutput::Tensor(v)));
    }

    #[test]
    fn elementwise_and_movement_keep_the_count_with_its_dimension() {
        let (mut cx, x) = bounded_input();
        let y = cx.scale(x, 2.0).expect("builds");
        let y = cx.permute(y, &[1, 0]).expect("builds");
        let y = cx.unsqueeze(y, 0).expect("builds");
        output(&mut cx, y);
        assert_eq!(lengths(&mut cx), vec![]);
        assert_eq!(cx.b.graph.lengths, [OutputLength { output: 0, dim: 2, count: 1 }]);
        assert_eq!(cx.b.graph.outputs[1].0, "y.len");
    }

    #[test]
    fn a_sum_over_the_rows_is_refused_and_one_along_them_is_not() {
        for (dim, problems) in [(0, 1), (1, 0)] {
            let (mut cx, x) = bounded_input();
            let y = cx.reduce(x, jvc_kernels::spec::Combine::Sum, &[dim], true, DType::F32).expect("builds");
            output(&mut cx, y);
            assert_eq!(lengths(&mut cx).len(), problems, "sum over dimension {dim}");
        }
    }

    #[test]
    fn only_data_dependent_symbols_with_a_bound_are_pinned() {
        let range = |max| Range { min: 0, max };
        let mut ranges: Ranges =
            [("u0".into(), range(3)), ("u1".into(), range(i64::MAX)), ("s0".into(), range(9))].into();
        assert_eq!(pin_to_bounds(&mut ranges), [("u0".to_string(), Dim::from(3))].into());
        assert_eq!(ranges.keys().collect::<Vec<_>>(), ["s0", "u1"]);
    }
}
