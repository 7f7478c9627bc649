//! Decides what is materialised and groups nodes into kernels.
//!
//! An *anchor* (reduction, matmul, convolution, …) is a kernel. What stands before it is inlined into it (prologue); a chain of `Map`s and
//! movement after it, each the only user of the one before, is inlined at its stores (epilogue). Everything else pointwise is inlined into
//! its users until that would cost more than a trip through memory; then it becomes a map kernel. A concatenation is a buffer that its
//! parts' kernels store into.

use super::inline::Place;
use super::layout::Order;
use crate::ir::{Dim, Graph, NodeId, Op, ValueId};
use crate::passes::{decodes_bytes, is_padded, is_turned};
pub use fusion::{Fusion, Group, GroupKind, Reason};
use jvc_kernels::expr::{Binary, Expr, Unary};
use jvc_kernels::spec::Combine;
pub(crate) use widening::is_widening;
use widening::widened;

/// Values that no kernel computes.
pub fn is_leaf(op: &Op) -> bool {
    matches!(op, Op::Input { .. } | Op::Weight(_) | Op::Const(_) | Op::State(_))
}

/// True for operations that are inlined rather than run as anchors.
pub fn is_pointwise(op: &Op) -> bool {
    matches!(
        op,
        Op::Map(_)
            | Op::Compute(_)
            | Op::Reshape(_)
            | Op::Permute(_)
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Broadcast(_)
            | Op::Flip(_)
    )
}

/// Cost of one element of an inlined value, in rough instruction counts.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    /// Arithmetic.
    ops: f64,
    /// Loads from memory.
    loads: f64,
}

const TRANSCENDENTAL_OPS: f64 = 8.0;
/// An operand of an inner loop is recomputed many times: only this much arithmetic rides along.
const MAX_INNER_LOOP_OPS: f64 = 3.0;
/// Arithmetic worth repeating in a second kernel rather than storing the value.
const MAX_SHARED_OPS: f64 = 6.0;
/// Bounds on one kernel's expression, which keep modules small and interfaces within push constants.
const MAX_OPS: f64 = 160.0;
const MAX_LOADS: f64 = 10.0;
/// A broadcast that repeats its operand more often than this reads it from memory.
const MAX_REPEAT: f64 = 8.0;

/// Chooses buffers and kernels. Twice: what an anchor's kernel takes in is in memory as a whole, so that its readers load one value and
/// need no copy of their own; but which chains an anchor takes in depends on what its readers have stored.
pub fn fuse(graph: &Graph) -> Fusion {
    let mut first = Fuser::new(graph);
    first.choose_buffers();
    first.group_anchors();
    let mut f = Fuser::new(graph);
    for group in first.fusion.groups {
        f.carried[group.result.0 as usize] = true;
    }
    f.choose_buffers();
    f.group_anchors();
    f.group_pointwise();
    f.place_roots();
    f.fusion.groups.sort_by_key(|g| g.position);
    f.fusion
}

struct Fuser<'a> {
    graph: &'a Graph,
    fusion: Fusion,
    users: Vec<Vec<NodeId>>,
    is_root: Vec<bool>,
    work: Vec<Work>,
    /// Values that some anchor's kernel computes in its epilogue.
    absorbed: Vec<bool>,
    /// Values that anchors' kernels store, by an earlier grouping.
    carried: Vec<bool>,
}

impl<'a> Fuser<'a> {
    fn new(graph: &'a Graph) -> Fuser<'a> {
        let n = graph.values.len();
        let mut users = vec![vec![]; n];
        for (i, node) in graph.nodes.iter().enumerate() {
            for v in &node.inputs {
                let of: &mut Vec<NodeId> = &mut users[v.0 as usize];
                if of.last() != Some(&NodeId(i as u32)) {
                    of.push(NodeId(i as u32));
                }
            }
        }
        let mut is_root = vec![false; n];
        for v in graph.roots() {
            is_root[v.0 as usize] = true;
        }
        let orders = vec![Order::Rows; n];
        let (buffers, places, parts) = (vec![None; n], vec![vec![]; n], vec![None; n]);
        let fusion = Fusion { buffers, places, parts, orders, beside: vec![vec![]; n], groups: vec![] };
        let (absorbed, carried) = (vec![false; n], vec![false; n]);
        Fuser { graph, fusion, users, is_root, work: vec![Work::default(); n], absorbed, carried }
    }

    fn users(&self, v: ValueId) -> &[NodeId] {
        &self.users[v.0 as usize]
    }

    fn mark(&mut self, v: ValueId, reason: Reason) {
        self.fusion.buffers[v.0 as usize].get_or_insert(reason);
    }

    fn choose_buffers(&mut self) {
        for node in &self.graph.nodes {
            if is_leaf(&node.op) {
                continue;
            }
            if !is_pointwise(&node.op) {
                for &v in &node.outputs {
                    self.mark(v, Reason::Anchor);
                }
                continue;
            }
            let v = node.outputs[0];
            let work = self.inline_work(&node.op, &node.inputs);
            self.work[v.0 as usize] = work;
            if self.carried[v.0 as usize] {
                self.mark(v, if self.is_root[v.0 as usize] { Reason::Root } else { Reason::Anchor });
                continue;
            }
            if let Some(reason) = self.materialize_reason(v, &node.op, work) {
                self.store(v, reason);
            }
        }
    }

    /// Marks a value, or what it widens: that holds the same in half the bytes, and is an operand that matrix units take.
    fn store(&mut self, v: ValueId, reason: Reason) {
        let widened = widened(self.graph, v, &self.fusion.buffers);
        let Some(chain) =
            widened.filter(|chain| reason != Reason::Root && (reason != Reason::Turned || chain.len() == 1))
        else {
            return self.mark(v, reason);
        };
        self.mark(self.graph.def(chain[0]).inputs[0], reason);
        for v in chain {
            let node = self.graph.def(v);
            self.work[v.0 as usize] = self.inline_work(&node.op, &node.inputs);
        }
    }

    /// Work of an element of `v` as its readers see it.
    fn read_work(&self, v: ValueId) -> Work {
        if self.fusion.in_memory(self.graph, v) { Work { ops: 0.0, loads: 1.0 } } else { self.work[v.0 as usize] }
    }

    fn inline_work(&self, op: &Op, inputs: &[ValueId]) -> Work {
        let mut w = Work { ops: own_ops(op), loads: 0.0 };
        for (i, &v) in inputs.iter().enumerate() {
            let sites = load_sites(op, i);
            let r = self.read_work(v);
            w.ops += r.ops * sites;
            w.loads += r.loads * sites;
        }
        w
    }

    fn materialize_reason(&self, v: ValueId, op: &Op, work: Work) -> Option<Reason> {
        if self.is_root[v.0 as usize] {
            return Some(Reason::Root);
        }
        if let Op::Concat { .. } = op
            && !self.concat_inlines(v)
        {
            return Some(Reason::Concat);
        }
        if work.ops > MAX_OPS || work.loads > MAX_LOADS {
            return Some(Reason::TooLarge);
        }
        let users = self.users(v);
        let reason = if users.len() > 1 && work.ops > MAX_SHARED_OPS {
            Some(Reason::SharedAndCostly)
        } else {
            users.iter().find_map(|&n| self.user_reason(v, work, &self.graph.node(n).op, n))
        };
        // Reading the bytes of a quantised weight and decoding them is cheaper than reading floats, and every run would store these anew.
        reason.filter(|_| !decodes_bytes(self.graph, v))
    }

    fn user_reason(&self, v: ValueId, work: Work, user: &Op, node: NodeId) -> Option<Reason> {
        match user {
            Op::Conv { .. } | Op::ConvTranspose { .. } if is_turned(self.graph, v) || is_padded(self.graph, v) => {
                Some(Reason::Turned)
            }
            Op::Compute(_) if work.ops > MAX_INNER_LOOP_OPS || work.loads > 1.5 => Some(Reason::IndexedOperand),
            Op::Matmul
            | Op::Conv { .. }
            | Op::ConvTranspose { .. }
            | Op::Attention { .. }
            | Op::AttentionParts { .. }
            | Op::Recurrent { .. }
            | Op::Sort { .. }
            | Op::Fft { .. }
            | Op::Pool { .. }
                if work.ops > MAX_INNER_LOOP_OPS || work.loads > 1.5 =>
            {
                Some(Reason::AnchorOperand)
            }
            Op::Map(_) | Op::Broadcast(_) if work.ops > MAX_INNER_LOOP_OPS && self.repeats(v, node) > MAX_REPEAT => {
                Some(Reason::Broadcast)
            }
            _ => None,
        }
    }

    /// How many output elements of a node read one element of `v`.
    fn repeats(&self, v: ValueId, node: NodeId) -> f64 {
        let size = |v: ValueId| {
            let n = self.graph.ty(v).n_elems();
            n.range(&self.graph.ranges).max.max(1) as f64
        };
        size(self.graph.node(node).outputs[0]) / size(v)
    }

    /// A concatenation of two cheap parts that one pointwise node reads is a selection, not a buffer.
    fn concat_inlines(&self, v: ValueId) -> bool {
        let node = self.graph.def(v);
        let one_pointwise_user = matches!(self.users(v), [n] if matches!(self.graph.node(*n).op, Op::Map(_)));
        one_pointwise_user
            && node.inputs.len() <= 2
            && node
                .inputs
                .iter()
                .all(|&p| self.read_work(p).ops <= MAX_INNER_LOOP_OPS && self.read_work(p).loads <= 1.5)
    }

    fn group_anchors(&mut self) {
        for (i, node) in self.graph.nodes.iter().enumerate() {
            if is_leaf(&node.op) || is_pointwise(&node.op) {
                continue;
            }
            let id = NodeId(i as u32);
            let epilogue = if takes_epilogue(&node.op) { self.epilogue(node.outputs[0]) } else { vec![] };
            let result = epilogue.last().map_or(node.outputs[0], |&n| self.graph.node(n).outputs[0]);
            if !epilogue.is_empty() {
                self.fusion.buffers[node.outputs[0].0 as usize] = None;
                self.absorbed[node.outputs[0].0 as usize] = true;
                for &n in &epilogue {
                    let v = self.graph.node(n).outputs[0];
                    self.absorbed[v.0 as usize] = true;
                    if v != result {
                        self.fusion.buffers[v.0 as usize] = None;
                    }
                }
                self.mark(result, Reason::Anchor);
            }
            let position = epilogue.last().map_or(id.0, |n| n.0);
            self.fusion.groups.push(Group { kind: GroupKind::Anchor { node: id, epilogue }, result, position });
        }
    }

    /// The nodes after an anchor that its stores can take in, up to the last one that computes or is an output.
    fn epilogue(&self, start: ValueId) -> Vec<NodeId> {
        let (mut chain, mut keep) = (vec![], 0);
        let mut v = start;
        loop {
            if self.is_root[v.0 as usize] {
                break;
            }
            let [user] = self.users(v)[..] else { break };
            let node = self.graph.node(user);
            let follows = match &node.op {
                Op::Map(_) => self.graph.ty(node.outputs[0]).shape == self.graph.ty(v).shape,
                Op::Reshape(_) | Op::Permute(_) => true,
                _ => false,
            };
            // What would be too large in its users is too large at the stores.
            let too_large = self.fusion.reason(node.outputs[0]) == Some(Reason::TooLarge);
            // Two anchors may meet in one node (a residual sum): the first takes it, the other's result is read there.
            if !follows || too_large || self.absorbed[node.outputs[0].0 as usize] {
                break;
            }
            chain.push(user);
            v = node.outputs[0];
            // What only widens rides on whatever reads it.
            let computes = matches!(node.op, Op::Map(_)) && !is_widening(self.graph, node);
            let stored = self.fusion.buffers[v.0 as usize].is_some();
            if computes || stored || self.is_root[v.0 as usize] || self.only_user_is_concat(v) {
                keep = chain.len();
            }
        }
        chain.truncate(keep);
        chain
    }

    fn only_user_is_concat(&self, v: ValueId) -> bool {
        matches!(self.users(v), [n] if self.is_materialized_concat(*n))
    }

    fn is_materialized_concat(&self, n: NodeId) -> bool {
        let node = self.graph.node(n);
        matches!(node.op, Op::Concat { .. }) && self.fusion.buffers[node.outputs[0].0 as usize].is_some()
    }

    fn group_pointwise(&mut self) {
        for (i, node) in self.graph.nodes.iter().enumerate() {
            if !is_pointwise(&node.op) || self.fusion.buffers[node.outputs[0].0 as usize].is_none() {
                continue;
            }
            let v = node.outputs[0];
            let position = i as u32;
            if self.fusion.groups.iter().any(|g| g.result == v) {
                continue;
            }
            match node.op {
                Op::Concat { dim } => self.group_parts(v, dim, &node.inputs, position),
                _ => self.fusion.groups.push(Group { kind: GroupKind::Map, result: v, position }),
            }
        }
    }

    fn group_parts(&mut self, concat: ValueId, dim: usize, inputs: &[ValueId], position: u32) {
        let mut start = Dim::from(0);
        for &arm in inputs {
            let next = &start + &self.graph.ty(arm).shape[dim];
            // A scatter updates in place what another kernel has copied: it needs a buffer of its own.
            let in_place = matches!(self.graph.def(arm).op, Op::Scatter { .. });
            let own_kernel =
                self.fusion.groups.iter().any(|g| g.result == arm) && !self.is_root[arm.0 as usize] && !in_place;
            let once = self.users(arm).len() == 1 && inputs.iter().filter(|&&v| v == arm).count() == 1;
            if own_kernel && once {
                self.fusion.parts[arm.0 as usize] = Some((concat, dim, start));
            } else if !self.graph.ty(arm).shape[dim].is(0) {
                let kind = GroupKind::Part { arm, start, dim };
                self.fusion.groups.push(Group { kind, result: concat, position });
            }
            start = next;
        }
    }

    /// Buffers for what kernels read, I/O slots for outputs, copies for outputs that are leaves, state updates.
    fn place_roots(&mut self) {
        let n_inputs = super::n_input_slots(self.graph);
        for v in (0..self.graph.values.len() as u32).map(ValueId) {
            let stored_elsewhere = self.fusion.parts[v.0 as usize].is_some();
            let read = !self.users(v).is_empty() && !stored_elsewhere;
            if self.fusion.buffers[v.0 as usize].is_some() && read {
                self.fusion.places[v.0 as usize].push(Place::Value(v));
            }
        }
        for (slot, v) in super::output_slots(self.graph) {
            self.fusion.places[v.0 as usize].push(Place::Output(n_inputs + slot));
        }
        for (i, (_, v)) in self.graph.state_updates.iter().enumerate() {
            let slot = Place::Value(*v);
            if !is_leaf(&self.graph.def(*v).op) && !self.fusion.places[v.0 as usize].contains(&slot) {
                self.fusion.places[v.0 as usize].push(slot);
            }
            let position = u32::MAX;
            self.fusion.groups.push(Group { kind: GroupKind::StateUpdate(i as u32), result: *v, position });
        }
        self.copy_leaf_outputs();
        self.bind_counts();
    }

    /// A count's step comes right after the count: everything that names the symbol stands behind that in the graph.
    fn bind_counts(&mut self) {
        for (i, binding) in self.graph.bindings.iter().enumerate() {
            let (v, place) = (binding.count, Place::Value(binding.count));
            let leaf = is_leaf(&self.graph.def(v).op);
            if !leaf && !self.fusion.places[v.0 as usize].contains(&place) {
                self.fusion.places[v.0 as usize].push(place);
            }
            let position = self.graph.value(v).def.0;
            self.fusion.groups.push(Group { kind: GroupKind::Bind(i as u32), result: v, position });
        }
    }

    fn copy_leaf_outputs(&mut self) {
        for v in (0..self.graph.values.len() as u32).map(ValueId) {
            if is_leaf(&self.graph.def(v).op) && !self.fusion.places[v.0 as usize].is_empty() {
                let position = self.graph.value(v).def.0;
                self.fusion.groups.push(Group { kind: GroupKind::Map, result: v, position });
            }
        }
    }
}

/// Anchors with one result per output coordinate, whose stores can run an epilogue.
fn takes_epilogue(op: &Op) -> bool {
    match op {
        Op::Reduce { .. }
        | Op::Softmax { .. }
        | Op::Norm { .. }
        | Op::Variance { .. }
        | Op::Matmul
        | Op::Conv { .. }
        | Op::ConvTranspose { .. }
        | Op::Attention { .. } => true,
        Op::Pool { indices, .. } => !indices,
        Op::Scan { combine, .. } => matches!(combine, Combine::Sum | Combine::Prod),
        _ => false,
    }
}

/// How many times an element of the op reads operand `i`.
fn load_sites(op: &Op, i: usize) -> f64 {
    match op {
        Op::Compute(body) => {
            let reachable = body.exprs.reachable(&[body.root]);
            let sites = reachable
                .iter()
                .filter(|&&id| matches!(body.exprs.get(id), Expr::Load { operand, .. } if *operand as usize == i));
            sites.count() as f64
        }
        _ => 1.0,
    }
}

/// Arithmetic of one element, operands left out.
fn own_ops(op: &Op) -> f64 {
    match op {
        Op::Map(body) | Op::Compute(body) => body
            .exprs
            .reachable(&[body.root])
            .iter()
            .map(|&id| match body.exprs.get(id) {
                Expr::Lit(_) | Expr::Arg(..) | Expr::Axis(_) | Expr::Sym(_) | Expr::Load { .. } => 0.0,
                Expr::Cast(..) => 0.25,
                Expr::Unary(Unary::Neg | Unary::Abs | Unary::Not | Unary::Floor | Unary::Ceil | Unary::Trunc, _) => 1.0,
                Expr::Unary(..) | Expr::Binary(Binary::Pow | Binary::Atan2, ..) => TRANSCENDENTAL_OPS,
                Expr::Binary(Binary::Div | Binary::Rem, ..) => 2.0,
                Expr::Binary(..) | Expr::Select(..) | Expr::Round(..) => 1.0,
            })
            .sum(),
        Op::Reshape(_) => 0.5,
        Op::Pad { .. } => 1.5,
        Op::Concat { .. } => 3.0,
        _ => 0.25,
    }
}

mod fusion;
mod widening;

#[cfg(test)]
mod tests;
