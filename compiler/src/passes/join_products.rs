//! Makes one product of several that share their left operand: the weights stand side by side in the weight file, and readers take their
//! columns of the result.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f32[4,8]
//!   %w = weight "w" : f32[8,8]
//!   %u = weight "u" : f32[8,8]
//!   %b = const [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0] : f32[1,8]
//!   %wt = permute %w perm=[1,0] : f32[8,8]
//!   %ut = permute %u perm=[1,0] : f32[8,8]
//!   %p = matmul %x, %wt : f32[4,8]
//!   %q = map(a + b) %p, %b : f32[4,8]
//!   %k = matmul %x, %ut : f32[4,8]
//!   %s = softmax %q dim=1 : f32[4,8]
//!   %t = softmax %k dim=1 : f32[4,8]
//!   output "s" = %s
//!   output "t" = %t
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f32[4,8]
//!   %v = weight "w" + "u" : f32[16,8]
//!   %v.1 = permute %v perm=[1,0] : f32[8,16]
//!   %v.2 = matmul %x, %v.1 : f32[4,16]
//!   %v.3 = const [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0] : f32[1,16]
//!   %v.4 = map(a + b) %v.2, %v.3 : f32[4,16]
//!   %q = slice %v.4 dim=1 start=0 len=8 step=1 : f32[4,8]
//!   %k = slice %v.4 dim=1 start=8 len=8 step=1 : f32[4,8]
//!   %s = softmax %q dim=1 : f32[4,8]
//!   %t = softmax %k dim=1 : f32[4,8]
//!   output "s" = %s
//!   output "t" = %t
//! }
//! ```
//!
//! Queries, keys and values, mostly. A bias that is added to a product joins too, as zeros where there is none. Products whose results meet
//! in one pointwise operation (a gate and what it gates) stay apart: the second takes in that operation at its stores, and the joined one
//! could not. So do results of the program, which would have to be copied out.

use super::constants::known_value;
use super::drop_dead::compact;
use super::{Cx, Pass};
use crate::ir::op::{Body, Literal, WeightRef};
use crate::ir::{Builder, DType, Dim, Graph, Node, NodeId, Op, TensorType, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, Expr, Exprs};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) const PASS: Pass =
    Pass { name: "join_products", summary: "makes one product of several with the same left operand", run };

/// Columns of a joined product: beyond, buffers grow and nothing is gained.
const MAX_COLUMNS: i64 = 16384;
/// Parts start at a multiple of this many columns, so that blocks of 16 bytes stay aligned whatever the element type.
const ALIGNED_COLUMNS: i64 = 8;

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    let finder = Finder::new(graph);
    let mut groups = vec![];
    for members in finder.by_operand().into_values() {
        if members.len() > 1
            && let Some(group) = Group::new(graph, cx, members)
            && cx.may_patch()
        {
            groups.push(group);
        }
    }
    let patches = groups.len() as u32;
    if patches > 0 {
        replace(graph, groups);
    }
    patches
}

/// A product with a weight, and its bias. Of halves it may be spelt out in f32: both operands widened, the result rounded.
#[derive(Debug, Clone)]
struct Member {
    product: NodeId,
    /// The left operand, before it is widened.
    operand: ValueId,
    weight: ValueId,
    stored: WeightRef,
    columns: i64,
    /// The value added to every row, and the sum.
    bias: Option<(ValueId, ValueId)>,
    /// It is spelt out in f32.
    spelt: bool,
    /// What it computes: product, sum, rounded sum. Readers see the last.
    values: Vec<ValueId>,
}

impl Member {
    fn result(&self) -> ValueId {
        *self.values.last().expect("the product at least")
    }
}

struct Finder<'a> {
    graph: &'a Graph,
    users: Vec<Vec<NodeId>>,
    is_root: Vec<bool>,
}

impl<'a> Finder<'a> {
    fn new(graph: &'a Graph) -> Finder<'a> {
        let mut users = vec![vec![]; graph.values.len()];
        for (i, node) in graph.nodes.iter().enumerate() {
            for v in &node.inputs {
                users[v.0 as usize].push(NodeId(i as u32));
            }
        }
        let mut is_root = vec![false; graph.values.len()];
        graph.roots().iter().for_each(|v| is_root[v.0 as usize] = true);
        Finder { graph, users, is_root }
    }

    fn by_operand(&self) -> BTreeMap<ValueId, Vec<Member>> {
        let mut out: BTreeMap<ValueId, Vec<Member>> = BTreeMap::new();
        let mut met: BTreeMap<ValueId, BTreeSet<NodeId>> = BTreeMap::new();
        for i in 0..self.graph.nodes.len() as u32 {
            let Some(member) = self.member(NodeId(i)) else { continue };
            let Some(reached) = self.pointwise_readers(member.result()) else { continue };
            let met = met.entry(member.operand).or_default();
            let members = out.entry(member.operand).or_default();
            let columns: i64 = members.iter().map(|m| m.columns).sum();
            if met.is_disjoint(&reached) && columns + member.columns <= MAX_COLUMNS {
                met.extend(reached);
                members.push(member);
            }
        }
        out
    }

    fn member(&self, id: NodeId) -> Option<Member> {
        let graph = self.graph;
        let node = graph.node(id);
        let (Op::Matmul, [a, b]) = (&node.op, &node.inputs[..]) else { return None };
        let operand = self.narrow(*a).unwrap_or(*a);
        let spelt = operand != *a;
        let turned = if spelt { self.narrow(*b)? } else { *b };
        let weight = *graph.def(turned).inputs.first()?;
        let Op::Weight(stored) = &graph.def(weight).op else { return None };
        let permuted = matches!(&graph.def(turned).op, Op::Permute(p) if *p == [1, 0]);
        let columns = graph.ty(weight).shape[0].as_const()?;
        let alone = [*b, turned, weight].iter().all(|v| self.users[v.0 as usize].len() == 1);
        if !permuted || !alone || graph.ty(*a).rank() != 2 || columns % ALIGNED_COLUMNS != 0 {
            return None;
        }
        let product = node.outputs[0];
        let mut values = vec![product];
        let bias = self.bias(product);
        values.extend(bias.map(|(_, sum)| sum));
        if spelt {
            values.push(self.rounded(*values.last()?, graph.ty(operand).dtype)?);
        }
        let (stored, columns) = (stored.clone(), columns);
        Some(Member { product: id, operand, weight, stored, columns, bias, spelt, values })
    }

    /// What a value is the widened form of.
    fn narrow(&self, v: ValueId) -> Option<ValueId> {
        let node = self.graph.def(v);
        let (Op::Map(body), [x]) = (&node.op, &node.inputs[..]) else { return None };
        let half = self.graph.ty(*x).dtype;
        let same = match *body.exprs.get(body.root) {
            Expr::Arg(..) => true,
            Expr::Round(dtype, a) => dtype == half && matches!(body.exprs.get(a), Expr::Arg(..)),
            _ => false,
        };
        let widens = matches!(half, DType::F16 | DType::BF16) && self.graph.ty(v).dtype == DType::F32;
        (same && widens).then_some(*x)
    }

    /// A value rounded to a half type, if that is all that reads it.
    fn rounded(&self, v: ValueId, half: DType) -> Option<ValueId> {
        let [user] = self.users[v.0 as usize][..] else { return None };
        let node = self.graph.node(user);
        let Op::Map(body) = &node.op else { return None };
        let Expr::Round(dtype, a) = *body.exprs.get(body.root) else { return None };
        let only = dtype == half && matches!(body.exprs.get(a), Expr::Arg(..)) && !self.is_root[v.0 as usize];
        (only && self.graph.ty(node.outputs[0]).dtype == half).then(|| node.outputs[0])
    }

    /// `product + row`, if that is all that reads the product.
    fn bias(&self, product: ValueId) -> Option<(ValueId, ValueId)> {
        let [user] = self.users[product.0 as usize][..] else { return None };
        let node = self.graph.node(user);
        let (Op::Map(body), [x, y]) = (&node.op, &node.inputs[..]) else { return None };
        let Expr::Binary(Binary::Add, p, q) = body.exprs.get(body.root) else { return None };
        let sums = [p, q].map(|e| matches!(body.exprs.get(*e), Expr::Arg(..))) == [true, true] && p != q;
        let row = if *x == product { *y } else { *x };
        let one_row = self.graph.ty(row).shape[..] == [Dim::from(1), self.graph.ty(product).shape[1].clone()];
        (sums && one_row && !self.is_root[product.0 as usize]).then_some((row, node.outputs[0]))
    }

    /// Pointwise operations that read a result, through movement and other pointwise ones; none where it leaves the program.
    fn pointwise_readers(&self, v: ValueId) -> Option<BTreeSet<NodeId>> {
        let (mut reached, mut stack) = (BTreeSet::new(), vec![v]);
        while let Some(v) = stack.pop() {
            if self.is_root[v.0 as usize] {
                return None;
            }
            for &user in &self.users[v.0 as usize] {
                let node = self.graph.node(user);
                match node.op {
                    Op::Map(_) | Op::Compute(_) | Op::Concat { .. } if !reached.insert(user) => continue,
                    Op::Map(_) | Op::Compute(_) | Op::Concat { .. } => {}
                    Op::Reshape(_)
                    | Op::Permute(_)
                    | Op::Slice { .. }
                    | Op::Pad { .. }
                    | Op::Broadcast(_)
                    | Op::Flip(_) => {}
                    _ => continue,
                }
                stack.extend(&node.outputs);
            }
        }
        Some(reached)
    }
}

/// Members of one joined product.
struct Group {
    members: Vec<Member>,
    /// Spelt out in f32, as one of them is.
    spelt: bool,
    /// Their biases in a row, and the element type of the sum.
    bias: Option<(Literal, DType)>,
}

impl Group {
    /// None where biases are of different types, or not known.
    fn new(graph: &Graph, cx: &Cx<'_>, members: Vec<Member>) -> Option<Group> {
        let spelt = members.iter().any(|m| m.spelt);
        let columns: i64 = members.iter().map(|m| m.columns).sum();
        let biased: Vec<(&Member, ValueId, ValueId)> =
            members.iter().filter_map(|m| m.bias.map(|(row, sum)| (m, row, sum))).collect();
        let Some(&(_, first, sum)) = biased.first() else { return Some(Group { members, spelt, bias: None }) };
        let (dtype, sum) = (graph.ty(first).dtype, graph.ty(sum).dtype);
        let alike = biased
            .iter()
            .all(|&(m, row, s)| graph.ty(row).dtype == dtype && graph.ty(s).dtype == sum && m.spelt == spelt);
        // A product without a bias must have the type of the sums, or come to it by rounding.
        let plain = members.iter().all(|m| m.bias.is_some() || spelt || graph.ty(m.values[0]).dtype == sum);
        if !alike || !plain {
            return None;
        }
        let mut bytes = vec![];
        for m in &members {
            match m.bias {
                Some((row, _)) => bytes.extend(known_value(graph, cx.weights, row)?.to_bytes()),
                None => bytes.resize(bytes.len() + m.columns as usize * dtype.size_bytes() as usize, 0),
            }
        }
        let ty = TensorType::fixed(dtype, &[1, columns]);
        Some(Group { members, spelt, bias: Some((Literal { ty, bytes: Arc::new(bytes) }, sum)) })
    }
}

/// Puts each joined product where the first of its members was.
fn replace(graph: &mut Graph, groups: Vec<Group>) {
    let mut at: BTreeMap<NodeId, Group> = groups.into_iter().map(|g| (g.members[0].product, g)).collect();
    let gone: BTreeSet<ValueId> = at.values().flat_map(|g| &g.members).flat_map(|m| m.values.clone()).collect();
    let nodes = std::mem::take(&mut graph.nodes);
    let mut b = Builder::resume(std::mem::take(graph));
    for (i, node) in nodes.into_iter().enumerate() {
        if let Some(group) = at.remove(&NodeId(i as u32)) {
            join(&mut b, &node, &group);
        }
        if !gone.contains(&node.outputs[0]) {
            push(&mut b, node);
        }
    }
    *graph = b.graph;
    compact(graph);
}

fn push(b: &mut Builder, node: Node) {
    let def = NodeId(b.graph.nodes.len() as u32);
    node.outputs.iter().for_each(|v| b.graph.values[v.0 as usize].def = def);
    b.graph.nodes.push(node);
}

fn join(b: &mut Builder, first: &Node, group: &Group) {
    b.set_origin_index(first.origin);
    let columns: i64 = group.members.iter().map(|m| m.columns).sum();
    let mut names = group.members.iter().flat_map(|m| m.stored.names());
    let mut joined = WeightRef::new(names.next().expect("two members at least"));
    joined.more = names.map(str::to_string).collect();
    let ty = b.ty(group.members[0].weight).clone();
    let ty = TensorType::new(ty.dtype, vec![Dim::from(columns), ty.shape[1].clone()]);
    let weight = b.push(Op::Weight(joined), vec![], vec![ty])[0];
    let mut operands = [group.members[0].operand, b.add1(Op::Permute(vec![1, 0]), vec![weight]).expect("a matrix")];
    if group.spelt {
        operands = operands.map(|v| cast(b, v, DType::F32));
    }
    let mut result = b.add1(Op::Matmul, operands.to_vec()).expect("the sizes of the members");
    if let Some((lit, dtype)) = &group.bias {
        let row = b.push(Op::Const(lit.clone()), vec![], vec![lit.ty.clone()])[0];
        let mut exprs = Exprs::new();
        let (x, y) = (exprs.arg(0, dtype.ty()), exprs.arg(1, lit.ty.dtype.ty()));
        let root = exprs.bin(Binary::Add, x, y);
        let ty = TensorType::new(*dtype, b.ty(result).shape.clone());
        result = b.map(Body { exprs, root, syms: vec![] }, vec![result, row], ty).expect("a sum of rows");
    }
    if group.spelt {
        result = cast(b, result, b.ty(group.members[0].result()).dtype);
    }
    let mut start = 0;
    for m in &group.members {
        let (len, step) = (Dim::from(m.columns), 1);
        let op = Op::Slice { dim: 1, start: Dim::from(start), len, step };
        push(b, Node { op, inputs: vec![result], outputs: vec![m.result()], origin: first.origin });
        start += m.columns;
    }
}

/// A widened or rounded value.
fn cast(b: &mut Builder, v: ValueId, dtype: DType) -> ValueId {
    let mut exprs = Exprs::new();
    let arg = exprs.arg(0, Ty::F32);
    let root = if dtype == DType::F32 { arg } else { exprs.add(Expr::Round(dtype, arg)) };
    let ty = TensorType::new(dtype, b.ty(v).shape.clone());
    b.map(Body { exprs, root, syms: vec![] }, vec![v], ty).expect("a map of one operand")
}
