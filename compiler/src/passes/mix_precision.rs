//! Mixed precision, where asked for (`--precision f16|bf16`): products, convolutions and attention in a half type, what loses by it in f32,
//! and everything else in the type of its operands. Inputs, outputs and states keep their types.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f32[2,16]
//!   %w = weight "w" : f32[4,16]
//!   %t = permute %w perm=[1,0] : f32[16,4]
//!   %n = norm %x dims=[1] eps=1e-5 : f32[2,16]
//!   %p = matmul %n, %t : f32[2,4]
//!   %y = map(max(a, 0.0)) %p : f32[2,4]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f32[2,16]
//!   %w = weight "w" : f16[4,16]
//!   %t = permute %w perm=[1,0] : f16[16,4]
//!   %n = norm %x dims=[1] eps=1e-5 : f32[2,16]
//!   %n.f16 = map(to_f16(a)) %n : f16[2,16]
//!   %p = matmul %n.f16, %t : f16[2,4]
//!   %y.f16 = map(max(a, 0.0)) %p : f16[2,4]
//!   %y = map(a) %y.f16 : f32[2,4]
//!   output "y" = %y
//! }
//! ```
//!
//! The table is `policy`. Three steps: forwards, every value is f32 or a half by the table and its operands; backwards, what only halves
//! are made of becomes one where it is made, which changes no result (weights, and whatever moves elements about); then nodes get
//! their operands in the type that they need. Sums are f32 in either case: that is how the kernels work. This pass changes what a graph
//! computes, so it runs only when asked to, and says what stayed: [`Report`].

mod policy;
mod report;

pub use report::{Kept, Report, Why};

use super::drop_dead::compact;
use super::{Cx, Pass};
use crate::ir::eval::literal;
use crate::ir::op::{Body, Literal};
use crate::ir::print::op_word;
use crate::ir::{Builder, DType, Graph, Node, NodeId, Op, TensorType, UserOutput, ValueId};
use crate::options::Mixed;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, Expr, ExprId, Exprs, Unary};
use policy::{Policy, matches_glob, policy};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const PASS: Pass = Pass { name: "mix_precision", summary: "computes in halves, where asked to", run };

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    let Some(mixed) = &cx.mixed else { return 0 };
    if !cx.may_patch() {
        return 0;
    }
    let mut choice = Choice::new(graph, mixed);
    choice.forwards();
    choice.backwards();
    let Choice { half, halves, kept, .. } = choice;
    let mut report = Report { half, layers: 0, others: 0, conversions: 0, kept };
    for node in graph.nodes.iter().filter(|n| n.outputs.iter().any(|v| halves[v.0 as usize])) {
        match node.op {
            Op::Matmul | Op::Conv { .. } | Op::ConvTranspose { .. } | Op::Attention { .. } => report.layers += 1,
            Op::Weight(_) | Op::Const(_) => {}
            _ => report.others += 1,
        }
    }
    let patches = halves.iter().filter(|h| **h).count() as u32;
    report.conversions = Rebuild::new(graph, half, halves).run(graph);
    cx.mixed_report.replace(Some(report));
    patches
}

/// What a value is, before anything changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// No f32 value: integers, f64, halves of the export.
    Other,
    /// It stays f32, unless only halves are made of it.
    Full,
    /// It becomes a half.
    Half,
    /// It depends on no input.
    Constant(Made),
}

/// What a value that depends on no input is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Made {
    /// Nothing that could lose by rounding.
    Fill,
    /// Weights or constants, or functions of them.
    Stored,
    /// Places of elements (`arange`, a grid of pixels), sums and multiples of them: halves have no place between two pixels beyond
    /// the thousandth.
    Places,
}

struct Choice<'a> {
    graph: &'a Graph,
    mixed: &'a Mixed,
    half: DType,
    classes: Vec<Class>,
    /// By value: it is a half afterwards.
    halves: Vec<bool>,
    kept: Vec<Kept>,
}

impl<'a> Choice<'a> {
    fn new(graph: &'a Graph, mixed: &'a Mixed) -> Choice<'a> {
        let n = graph.values.len();
        let (classes, halves) = (vec![Class::Other; n], vec![false; n]);
        Choice { graph, mixed, half: mixed.half.dtype(), classes, halves, kept: vec![] }
    }

    fn class(&self, v: ValueId) -> Class {
        self.classes[v.0 as usize]
    }

    fn forwards(&mut self) {
        let graph = self.graph;
        for node in &graph.nodes {
            let Some(&first) = node.outputs.iter().find(|&&v| graph.ty(v).dtype == DType::F32) else { continue };
            let class = match &node.op {
                Op::Weight(_) | Op::Const(_) => Class::Constant(Made::Stored),
                Op::Input { .. } | Op::State(_) => Class::Full,
                _ => self.of_node(node, first),
            };
            for &v in node.outputs.iter().filter(|&&v| graph.ty(v).dtype == DType::F32) {
                self.classes[v.0 as usize] = class;
                self.halves[v.0 as usize] = class == Class::Half;
            }
        }
    }

    fn of_node(&mut self, node: &Node, out: ValueId) -> Class {
        let graph = self.graph;
        if let Some(class) = self.constant(node) {
            return class;
        }
        let policy = match self.asked(node) {
            Some(pattern) if !is_movement(&node.op) => Policy::Full(Why::Asked(pattern.clone())),
            _ => policy(graph, node),
        };
        let why = match policy {
            // Operands of other types (an export that is mixed already) are not this pass's business.
            Policy::Half if self.own_operands(node).iter().any(|&v| graph.ty(v).dtype != DType::F32) => {
                return Class::Full;
            }
            Policy::Half => return Class::Half,
            Policy::Full(why) => why,
            Policy::Follow => match self.decisive(node, out) {
                None => return Class::Half,
                Some(operand) => Why::Operand(graph.value(operand).name.clone()),
            },
        };
        let module = graph.origins[node.origin as usize].module.clone();
        let moves = is_movement(&node.op);
        // Movement of f32 values computes nothing: it is not worth a line.
        if !(moves && matches!(why, Why::Operand(_))) {
            self.kept.push(Kept { name: graph.value(out).name.clone(), op: op_word(&node.op), module, why });
        }
        Class::Full
    }

    /// The class of a node that depends on no input.
    fn constant(&self, node: &Node) -> Option<Class> {
        let origin = |&v: &ValueId| match self.class(v) {
            Class::Constant(origin) => Some(origin),
            Class::Full | Class::Half | Class::Other => None,
        };
        let origins: Vec<Made> = node.inputs.iter().map(origin).collect::<Option<_>>()?;
        let most = origins.iter().copied().max().unwrap_or(Made::Fill);
        Some(Class::Constant(match &node.op {
            Op::Map(body) | Op::Compute(body) if is_linear_in_places(body, &origins) => Made::Places,
            op if is_movement(op) => most,
            _ => most.min(Made::Stored),
        }))
    }

    fn asked(&self, node: &Node) -> Option<&'a String> {
        let module = &self.graph.origins[node.origin as usize].module;
        self.mixed.keep_f32.iter().find(|pattern| matches_glob(pattern, module))
    }

    /// Operands that must have the type of the result.
    fn own_operands<'n>(&self, node: &'n Node) -> &'n [ValueId] {
        match node.op {
            Op::Attention { .. } => &node.inputs[..3],
            _ => &node.inputs,
        }
    }

    /// The operand for which a node that follows its operands stays f32.
    fn decisive(&self, node: &Node, out: ValueId) -> Option<ValueId> {
        let size = |v: ValueId| self.graph.ty(v).n_elems().range(&self.graph.ranges).max;
        let floats = node.inputs.iter().copied().filter(|&v| self.graph.ty(v).dtype.is_float());
        let neutral = |v: ValueId| match self.class(v) {
            Class::Half | Class::Constant(Made::Fill) => true,
            Class::Constant(Made::Places) => size(v) == 1,
            // One number for many elements (a bias, a scale) decides nothing; a table as large as the result does, and a part of one.
            Class::Constant(Made::Stored) => match node.op {
                Op::Map(_) => size(v) < size(out),
                Op::Concat { .. } => false,
                _ => true,
            },
            Class::Full | Class::Other => matches!(node.op, Op::Map(_)) && size(v) == 1 && size(out) > 1,
        };
        let mut floats: Vec<ValueId> = floats.collect();
        let any_half = floats.iter().any(|&v| self.class(v) == Class::Half);
        if !any_half {
            // Nothing to follow: made of integers, constants or f32 values.
            floats.extend(node.inputs.iter().copied());
            return floats.iter().copied().find(|&v| !neutral(v)).or_else(|| floats.first().copied());
        }
        floats.into_iter().find(|&v| !neutral(v))
    }

    /// What is read as halves alone is made as one.
    fn backwards(&mut self) {
        let graph = self.graph;
        let (mut uses, mut as_half) = (vec![0u32; graph.values.len()], vec![0u32; graph.values.len()]);
        graph.roots().iter().for_each(|v| uses[v.0 as usize] += 1);
        for node in graph.nodes.iter().rev() {
            for &v in &node.outputs {
                let i = v.0 as usize;
                let all = uses[i] > 0 && as_half[i] == uses[i];
                let mut narrows = matches!(self.classes[i], Class::Full | Class::Constant(_)) && all;
                narrows &= match node.op {
                    Op::Map(_) | Op::Compute(_) | Op::Weight(_) | Op::Const(_) => true,
                    Op::Pad { .. } => policy(graph, node) == Policy::Follow,
                    _ => is_movement(&node.op),
                };
                self.halves[i] |= narrows;
            }
            let out_half = node.outputs.iter().any(|v| self.halves[v.0 as usize]);
            let own = self.own_operands(node).len();
            for (k, &v) in node.inputs.iter().enumerate() {
                uses[v.0 as usize] += 1;
                as_half[v.0 as usize] += u32::from(out_half && k < own && !is_pointwise(&node.op));
            }
        }
    }
}

/// Whether a body counts, shifts and scales coordinates, its own or those that its operands are.
fn is_linear_in_places(body: &Body, operands: &[Made]) -> bool {
    let mut open = vec![body.root];
    while let Some(id) = open.pop() {
        match body.exprs.get(id) {
            Expr::Axis(_) => return true,
            Expr::Arg(i, _) if operands.get(usize::from(*i)) == Some(&Made::Places) => return true,
            Expr::Load { operand, .. } if operands.get(usize::from(*operand)) == Some(&Made::Places) => return true,
            Expr::Cast(_, a) | Expr::Unary(Unary::Neg, a) => open.push(*a),
            Expr::Binary(Binary::Add | Binary::Sub | Binary::Mul | Binary::Div, a, b) => open.extend([*a, *b]),
            _ => {}
        }
    }
    false
}

/// Operations that take operands of any floating type.
fn is_pointwise(op: &Op) -> bool {
    matches!(op, Op::Map(_) | Op::Compute(_))
}

fn is_movement(op: &Op) -> bool {
    matches!(
        op,
        Op::Reshape(_)
            | Op::Permute(_)
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Broadcast(_)
            | Op::Flip(_)
    )
}

/// Gives every node its operands in the type that it needs.
struct Rebuild {
    half: DType,
    halves: Vec<bool>,
    /// The element type of each value in the graph given.
    before: Vec<DType>,
    b: Builder,
    narrow: BTreeMap<ValueId, ValueId>,
    wide: BTreeMap<ValueId, ValueId>,
}

impl Rebuild {
    fn new(graph: &mut Graph, half: DType, halves: Vec<bool>) -> Rebuild {
        let before = graph.values.iter().map(|v| v.ty.dtype).collect();
        let b = Builder::resume(std::mem::take(graph));
        Rebuild { half, halves, before, b, narrow: BTreeMap::new(), wide: BTreeMap::new() }
    }

    /// The number of conversions.
    fn run(mut self, graph: &mut Graph) -> usize {
        for node in std::mem::take(&mut self.b.graph.nodes) {
            self.b.set_origin_index(node.origin);
            self.node(node);
        }
        self.roots();
        *graph = self.b.graph;
        compact(graph);
        let casts = self.narrow.values().chain(self.wide.values());
        casts.count()
    }

    fn is_half(&self, v: ValueId) -> bool {
        self.halves.get(v.0 as usize).copied().unwrap_or(false)
    }

    fn node(&mut self, mut node: Node) {
        let half_out = node.outputs.iter().any(|&v| self.is_half(v));
        let own = if matches!(node.op, Op::Attention { .. }) { 3 } else { node.inputs.len() };
        if !is_pointwise(&node.op) {
            for v in &mut node.inputs[..own] {
                if self.before[v.0 as usize] == DType::F32 {
                    *v = if half_out { self.as_half(*v) } else { self.as_full(*v) };
                }
            }
        }
        match &mut node.op {
            Op::Compute(body) => *body = reloaded(body, &node.inputs, &self.b.graph),
            Op::Reduce { dtype, .. } if half_out => *dtype = self.half,
            Op::Const(lit) if half_out => *lit = converted(lit, self.half),
            _ => {}
        }
        for &v in node.outputs.iter().filter(|&&v| self.before[v.0 as usize] == DType::F32) {
            if half_out {
                self.b.graph.values[v.0 as usize].ty.dtype = self.half;
            }
        }
        self.push(node);
    }

    fn push(&mut self, node: Node) {
        let def = NodeId(self.b.graph.nodes.len() as u32);
        node.outputs.iter().for_each(|v| self.b.graph.values[v.0 as usize].def = def);
        self.b.graph.nodes.push(node);
    }

    fn as_half(&mut self, v: ValueId) -> ValueId {
        if self.is_half(v) {
            return v;
        }
        if let Some(&n) = self.narrow.get(&v) {
            return n;
        }
        let op = match &self.b.graph.def(v).op {
            // Other readers need it in f32: the checkpoint's tensor is stored twice.
            Op::Weight(w) => Some(Op::Weight(w.clone())),
            Op::Const(lit) => Some(Op::Const(converted(lit, self.half))),
            _ => None,
        };
        let ty = TensorType::new(self.half, self.b.ty(v).shape.clone());
        let n = match op {
            Some(op) => self.b.push(op, vec![], vec![ty])[0],
            None => self.cast(v, ty),
        };
        self.rename(v, n, self.half);
        self.narrow.insert(v, n);
        n
    }

    fn as_full(&mut self, v: ValueId) -> ValueId {
        if !self.is_half(v) {
            return v;
        }
        if let Some(&w) = self.wide.get(&v) {
            return w;
        }
        let w = self.cast(v, TensorType::new(DType::F32, self.b.ty(v).shape.clone()));
        self.rename(v, w, DType::F32);
        self.wide.insert(v, w);
        w
    }

    fn cast(&mut self, v: ValueId, ty: TensorType) -> ValueId {
        let mut exprs = Exprs::new();
        let arg = exprs.arg(0, Ty::F32);
        let root = if ty.dtype == DType::F32 { arg } else { exprs.add(Expr::Round(ty.dtype, arg)) };
        self.b.map(Body { exprs, root, syms: vec![] }, vec![v], ty).expect("a map of one operand")
    }

    fn rename(&mut self, from: ValueId, to: ValueId, dtype: DType) {
        let name = self.b.fresh_name(&format!("{}.{dtype}", self.b.graph.value(from).name));
        self.b.graph.values[to.0 as usize].name = name;
    }

    /// What leaves the program keeps its type and its name.
    fn roots(&mut self) {
        let roots: Vec<ValueId> = self.b.graph.roots().into_iter().filter(|&v| self.is_half(v)).collect();
        let mut full: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        for v in roots {
            if full.contains_key(&v) {
                continue;
            }
            let fresh = !self.wide.contains_key(&v);
            let w = self.as_full(v);
            if fresh {
                let name = std::mem::take(&mut self.b.graph.values[v.0 as usize].name);
                let half_name = self.b.fresh_name(&format!("{name}.{}", self.half));
                self.b.graph.values[v.0 as usize].name = half_name;
                self.b.graph.values[w.0 as usize].name = name;
            }
            full.insert(v, w);
        }
        let to = |v: &mut ValueId| *v = full.get(v).copied().unwrap_or(*v);
        let graph = &mut self.b.graph;
        for (_, output) in &mut graph.outputs {
            if let UserOutput::Tensor(v) = output {
                to(v);
            }
        }
        graph.state_updates.iter_mut().for_each(|(_, v)| to(v));
        graph.input_updates.iter_mut().for_each(|(_, v)| to(v));
    }
}

/// A body whose loads name the element types that the operands have now.
fn reloaded(body: &Body, inputs: &[ValueId], graph: &Graph) -> Body {
    let mut exprs = Exprs::new();
    let mut new: BTreeMap<ExprId, ExprId> = BTreeMap::new();
    for (id, e) in body.exprs.iter() {
        let operands: Vec<ExprId> = body.exprs.operands(id).iter().map(|o| new[o]).collect();
        let mut e = Exprs::with_operands(e, &operands);
        if let Expr::Load { operand, dtype, .. } = &mut e {
            *dtype = graph.ty(inputs[*operand as usize]).dtype;
        }
        new.insert(id, exprs.add(e));
    }
    Body { exprs, root: new[&body.root], syms: body.syms.clone() }
}

fn converted(lit: &Literal, dtype: DType) -> Literal {
    let t = literal(lit).converted(dtype);
    Literal { ty: TensorType::new(dtype, lit.ty.shape.clone()), bytes: Arc::new(t.to_bytes()) }
}
