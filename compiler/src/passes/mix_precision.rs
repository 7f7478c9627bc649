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
mod rebuild;
mod report;

pub use report::{Call, Kept, Report, Why};

use super::rewrite::{Patch, View, rewrite};
use super::{Cx, Pass};
use crate::ir::op::Body;
use crate::ir::print::op_word;
use crate::ir::{DType, Graph, Node, NodeId, Op, ValueId};
use crate::islands::{Island, ProgramIslands};
use crate::options::Mixed;
use jvc_kernels::expr::{Binary, Expr, Unary};
use policy::{Policy, matches_glob, policy};
use rebuild::Rebuild;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const PASS: Pass = Pass { name: "mix_precision", summary: "computes in halves, where asked to", run };

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    let Some(mixed) = &cx.mixed else { return 0 };
    if !cx.may_patch() {
        return 0;
    }
    let mut choice = Choice::new(graph, mixed);
    choice.forwards();
    let calls = choice.calls();
    let islands = mixed.islands.as_ref().and_then(|i| Some((i.budget, i.programs.first()?)));
    if let Some((_, program)) = islands {
        choice = choice.with_islands(program);
    }
    choice.backwards();
    let Choice { half, halves, kept, .. } = choice;
    let mut report = Report::new(half, kept, calls);
    if let Some((budget, program)) = islands {
        report.add_islands(graph, budget, program);
    }
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
    patches + rewrite(graph, cx, &[needless_conversion])
}

/// Halves of the export were widened for what now takes halves.
fn needless_conversion<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    let (Op::Map(body), [x]) = (&n.op, &n.inputs[..]) else { return None };
    let dtype = view.ty(n.outputs[0]).dtype;
    let converted = match body.exprs.get(body.root) {
        Expr::Round(to, a) if *to == dtype => *a,
        _ => body.root,
    };
    let same = matches!(body.exprs.get(converted), Expr::Arg(0, _)) && view.ty(*x) == view.ty(n.outputs[0]);
    if same { Patch::new(view).replace_by(*x) } else { None }
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
    overruled: Option<Overruled<'a>>,
}

/// What the rules alone say, and the calls that stay in f32 all the same.
struct Overruled<'a> {
    classes: Vec<Class>,
    /// By node of the export.
    islands: BTreeMap<&'a str, &'a Island>,
}

impl<'a> Choice<'a> {
    fn new(graph: &'a Graph, mixed: &'a Mixed) -> Choice<'a> {
        let n = graph.values.len();
        let (classes, halves) = (vec![Class::Other; n], vec![false; n]);
        Choice { graph, mixed, half: mixed.half.dtype(), classes, halves, kept: vec![], overruled: None }
    }

    /// Once more, with islands. These alone stay: what follows an island is what it is by the rules, and only movement of it is f32.
    fn with_islands(self, program: &'a ProgramIslands) -> Choice<'a> {
        let islands = program.islands.iter().map(|i| (i.node.as_str(), i)).collect();
        let overruled = Some(Overruled { classes: self.classes, islands });
        let mut again = Choice { overruled, ..Choice::new(self.graph, self.mixed) };
        again.forwards();
        again
    }

    /// Calls of the program of which something computes in halves.
    fn calls(&self) -> Vec<Call> {
        let computes = self.graph.nodes.iter().filter(|n| !is_movement(&n.op));
        let half = |n: &&Node| n.outputs.iter().any(|&v| self.class(v) == Class::Half);
        let mut seen = BTreeSet::new();
        let origins = computes.filter(half).map(|n| &self.graph.origins[n.origin as usize]);
        origins.filter(|o| seen.insert(&o.node)).map(Call::of).collect()
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
        if let Some(class) = self.overruled(node, out) {
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
        // Movement of f32 values computes nothing: it is not worth a line.
        if !(is_movement(&node.op) && matches!(why, Why::Operand(_))) {
            self.keep(node, out, why);
        }
        Class::Full
    }

    fn keep(&mut self, node: &Node, out: ValueId, why: Why) {
        let module = self.graph.origins[node.origin as usize].module.clone();
        self.kept.push(Kept { name: self.graph.value(out).name.clone(), op: op_word(&node.op), module, why });
    }

    /// With islands, what would compute in halves by the rules does so, or is one.
    fn overruled(&mut self, node: &Node, out: ValueId) -> Option<Class> {
        let Overruled { classes, islands } = self.overruled.as_ref()?;
        if is_movement(&node.op) || classes[out.0 as usize] != Class::Half {
            return None;
        }
        let call = &self.graph.origins[node.origin as usize].node;
        let Some(island) = islands.get(call.as_str()) else { return Some(Class::Half) };
        let why = Why::Budget { call: call.clone(), effect: island.effect() };
        self.keep(node, out, why);
        Some(Class::Full)
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
