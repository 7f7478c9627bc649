//! Control flow: `cond`, `while_loop`, `scan`, `associative_scan` and `map` become part of the graph around them.
//!
//! A recording has no jumps, so everything is laid out flat. A predicate that is known at compile time (a counter from a constant) decides
//! then. Otherwise both branches of a `cond` run and each result is selected, which is right because branches have no effects; it leaves
//! a reason, as does every loop. Loops over a dimension (`scan`, `map`) run once per element of a literal size.
//!
//! ```text
//! cond(p, f, g, x)               select(p, f(x), g(x))
//! scan(f, h, xs)                 h1, y0 = f(h, xs[0])   h2, y1 = f(h1, xs[1])   …   hn, stack(y0, y1, …)
//! while_loop(c, f, x), c known   f(…f(x)…) until c is false
//! ```

use super::cx::{Built, Slot};
use super::inline::{flat_names, scoped_graph};
use super::lower::{Lowering, origin_of};
use super::{Cx, Val, bad_argument, unsupported_attribute, unsupported_shape};
use crate::import::program::{Arg, Node, ProgramGraph, SubGraph, SymArg};
use crate::ir::{DType, Dim, ValueId};
use crate::passes::known_value;
use crate::report::Diagnostic;

/// The operators of this file.
pub(super) const NAMES: [&str; 6] = [
    "higher_order.cond",
    "higher_order.while_loop",
    "higher_order.scan",
    "higher_order.associative_scan",
    "higher_order.map",
    "higher_order.map_impl",
];

/// Most nodes that a loop may become.
const MAX_NODES: usize = 200_000;
/// Elements of a carried value that is computed at compile time, where it can be.
const MAX_KNOWN: i64 = 16;

impl Lowering<'_> {
    /// Lowers a higher-order operator that decides or repeats.
    pub(super) fn control_flow(&mut self, graph: &ProgramGraph, node: &Node) -> Result<(), Diagnostic> {
        let results = match node.target.as_str() {
            "higher_order.cond" => self.cond(node)?,
            "higher_order.while_loop" => self.while_loop(node)?,
            "higher_order.scan" => self.scan(node)?,
            "higher_order.associative_scan" => self.associative_scan(node)?,
            _ => self.map(node)?,
        };
        self.cx.b.set_origin(origin_of(node));
        let names: Vec<Option<String>> = node.outputs.iter().flat_map(flat_names).collect();
        if names.len() > results.len() {
            let (want, got) = (names.len(), results.len());
            return Err(bad_argument(format!("{} gives {got} results, the export names {want}", node.target)));
        }
        for (name, value) in names.into_iter().zip(results) {
            let Some(name) = name else { continue };
            let value = match graph.tensors.get(&name) {
                Some(meta) => self.cx.check_recorded(value, meta)?,
                None => value,
            };
            let slot = self.slot(value);
            self.cx.names.insert(name, slot);
        }
        Ok(())
    }

    fn slot(&mut self, value: Val) -> Slot {
        match value {
            Val::Tensor(_) | Val::Complex { .. } => Slot::Tensor(self.cx.track_new(value, None)),
            other => Slot::Plain(other),
        }
    }

    /// The sub-graph on operands: its results.
    fn apply(&mut self, sub: &SubGraph, scope: &str, operands: &[Val]) -> Result<Vec<Val>, Diagnostic> {
        let scoped = scoped_graph(sub, scope);
        let names: Vec<Option<String>> = scoped.inputs.iter().flat_map(flat_names).collect();
        if names.len() != operands.len() {
            let (want, got) = (names.len(), operands.len());
            return Err(bad_argument(format!("{} takes {want} operands, {got} are given", sub.name)));
        }
        let first_group = self.cx.groups.len();
        for (name, operand) in names.into_iter().zip(operands) {
            let slot = self.slot(operand.clone());
            if let Some(name) = name {
                self.cx.names.insert(name, slot);
            }
        }
        let operand_groups = first_group..self.cx.groups.len();
        for (name, dim) in &scoped.sym_ints {
            self.cx.names.entry(name.clone()).or_insert_with(|| Slot::Plain(Val::Int(dim.clone())));
        }
        let problems = self.n_problems();
        for inner in &scoped.nodes {
            self.run_node(&scoped, inner);
        }
        if self.n_problems() > problems {
            self.cx.cascade = true;
            return Err(bad_argument(format!("{} could not be lowered", sub.name)));
        }
        if self.cx.groups[operand_groups].iter().any(|g| g.version > 0) {
            return Err(unsupported_attribute(format!(
                "{} writes one of its operands, which is not supported",
                sub.name
            )));
        }
        scoped.outputs.iter().map(|out| self.values(out)).collect::<Result<Vec<_>, _>>().map(|v| v.concat())
    }

    /// What an argument holds, lists flattened.
    fn values(&mut self, arg: &Arg) -> Result<Vec<Val>, Diagnostic> {
        let int = |v: &i64| Val::Int(Dim::from(*v));
        Ok(match arg {
            Arg::Tensor(n) => vec![self.cx.read(n)?],
            Arg::Tensors(list) => list.iter().map(|n| self.cx.read(n)).collect::<Result<_, _>>()?,
            Arg::SymInt(SymArg::Name(n)) | Arg::SymBool(SymArg::Name(n)) => vec![self.cx.read(n)?],
            Arg::SymInt(SymArg::Value(v)) | Arg::Int(v) => vec![int(v)],
            Arg::SymBool(SymArg::Value(v)) | Arg::Bool(v) => vec![Val::Bool(*v)],
            Arg::Float(v) => vec![Val::Float(*v)],
            Arg::Ints(list) => list.iter().map(int).collect(),
            Arg::SymInts(list) => list
                .iter()
                .map(|a| match a {
                    SymArg::Name(n) => self.cx.read(n),
                    SymArg::Value(v) => Ok(int(v)),
                })
                .collect::<Result<_, _>>()?,
            Arg::None => vec![Val::None],
            other => {
                return Err(unsupported_attribute(format!("{other:?} as an operand of control flow is not supported")));
            }
        })
    }

    fn operands(&mut self, node: &Node, at: usize) -> Result<Vec<Val>, Diagnostic> {
        node.inputs.get(at).map_or(Ok(vec![]), |i| self.values(&i.arg))
    }

    fn cond(&mut self, node: &Node) -> Result<Vec<Val>, Diagnostic> {
        let (yes, no) = (sub_graph(node, 1)?, sub_graph(node, 2)?);
        let operands = self.operands(node, 3)?;
        let predicate = self.operands(node, 0)?.into_iter().next().unwrap_or(Val::None);
        let choice = match self.decide(&predicate)? {
            Choice::Known(true) => return self.apply(yes, &node.name, &operands),
            Choice::Known(false) => return self.apply(no, &node.name, &operands),
            Choice::Data(choice) => choice,
        };
        let yes = self.apply(yes, &format!("{}.true", node.name), &operands)?;
        let no = self.apply(no, &format!("{}.false", node.name), &operands)?;
        self.cx.b.set_origin(origin_of(node));
        self.slow(node, "both branches run, and one is selected");
        yes.iter().zip(&no).map(|(a, b)| self.cx.select_value(choice, a, b)).collect()
    }

    /// A predicate as a truth value or a tensor of one.
    fn decide(&mut self, predicate: &Val) -> Result<Choice, Diagnostic> {
        match predicate {
            Val::Bool(b) => Ok(Choice::Known(*b)),
            Val::Int(d) if d.as_const().is_some() => Ok(Choice::Known(!d.is(0))),
            Val::Tensor(v) => {
                let v = self.cx.cast(*v, DType::Bool)?;
                let v = self.cx.reshape(v, vec![])?;
                Ok(match self.known(v).and_then(|t| t.first_int()) {
                    Some(b) => Choice::Known(b != 0),
                    None => Choice::Data(v),
                })
            }
            other => Err(unsupported_shape(format!(
                "a decision by {other:?}, which is not known at compile time, is not supported"
            ))),
        }
    }

    /// The value of what depends on constants alone. Buffers do not count: a program may write them.
    fn known(&self, v: ValueId) -> Option<crate::ir::eval::Tensor> {
        known_value(&self.cx.b.graph, &|name| self.constant_tensor(name), v)
    }

    /// A small carried value that is known becomes a constant, so that the next iteration's predicate is short.
    fn settled(&mut self, value: Val) -> BuiltVal {
        let Val::Tensor(v) = value else { return Ok(value) };
        let small = self.cx.ty(v).n_elems().as_const().is_some_and(|n| n <= MAX_KNOWN);
        match small.then(|| self.known(v)).flatten() {
            Some(t) => {
                let (ty, bytes) = (self.cx.ty(v).clone(), t.to_bytes());
                Ok(Val::Tensor(self.cx.const_bytes(ty, bytes)?))
            }
            None => Ok(value),
        }
    }

    fn while_loop(&mut self, node: &Node) -> Result<Vec<Val>, Diagnostic> {
        let (test, body) = (sub_graph(node, 0)?, sub_graph(node, 1)?);
        let (mut carried, fixed) = (self.operands(node, 2)?, self.operands(node, 3)?);
        let start = self.cx.b.graph.nodes.len();
        for trip in 0.. {
            carried = carried.into_iter().map(|v| self.settled(v)).collect::<Result<_, _>>()?;
            let all = [carried.clone(), fixed.clone()].concat();
            let test = self.apply(test, &format!("{}.test{trip}", node.name), &all)?;
            let go_on = self.decide(test.first().unwrap_or(&Val::None))?;
            match go_on {
                Choice::Known(true) => {}
                Choice::Known(false) => break,
                Choice::Data(_) => {
                    return Err(unsupported_shape(format!(
                        "{}: the number of iterations depends on data, which is not supported",
                        node.target
                    )));
                }
            }
            carried = self.apply(body, &format!("{}.body{trip}", node.name), &all)?;
            self.check_size(node, start)?;
        }
        self.slow(node, "the loop is laid out iteration by iteration");
        Ok(carried)
    }

    fn check_size(&self, node: &Node, start: usize) -> Result<(), Diagnostic> {
        if self.cx.b.graph.nodes.len() - start <= MAX_NODES {
            return Ok(());
        }
        Err(unsupported_shape(format!(
            "{} becomes more than {MAX_NODES} operations, iteration by iteration",
            node.target
        )))
    }

    /// The number of iterations over tensors: their first size.
    fn trips(&self, node: &Node, xs: &[Val]) -> Result<i64, Diagnostic> {
        let first = xs.first().and_then(|x| match x {
            Val::Tensor(v) | Val::Complex { re: v, .. } => self.cx.ty(*v).shape.first().cloned(),
            _ => None,
        });
        let size = first.ok_or_else(|| bad_argument(format!("{} over no tensor", node.target)))?;
        size.as_const().ok_or_else(|| {
            unsupported_shape(format!("{} over the symbolic size {size} is not supported", node.target))
                .with_help("pin the symbol with --set")
        })
    }

    fn rows(&mut self, xs: &[Val], at: i64) -> Result<Vec<Val>, Diagnostic> {
        xs.iter().map(|x| self.cx.each(x, |cx, x| cx.select(x, 0, Dim::from(at)))).collect()
    }

    /// One tensor per position of the results, along a new first dimension.
    fn stacked(&mut self, steps: &[Vec<Val>]) -> Result<Vec<Val>, Diagnostic> {
        let n = steps.first().map_or(0, Vec::len);
        (0..n)
            .map(|k| {
                let parts: Vec<&Val> = steps.iter().map(|s| &s[k]).collect();
                self.cx.stack_values(&parts)
            })
            .collect()
    }

    fn scan(&mut self, node: &Node) -> Result<Vec<Val>, Diagnostic> {
        let step = sub_graph(node, 0)?;
        let (mut carried, xs, fixed) = (self.operands(node, 1)?, self.operands(node, 2)?, self.operands(node, 3)?);
        let (n_carried, start) = (carried.len(), self.cx.b.graph.nodes.len());
        let mut steps = vec![];
        for t in 0..self.trips(node, &xs)? {
            let rows = self.rows(&xs, t)?;
            let all = [carried, rows, fixed.clone()].concat();
            let mut results = self.apply(step, &format!("{}.{t}", node.name), &all)?;
            if results.len() < n_carried {
                return Err(bad_argument(format!(
                    "{} carries {n_carried} values, its step gives {}",
                    node.target,
                    results.len()
                )));
            }
            steps.push(results.split_off(n_carried));
            carried = results;
            self.check_size(node, start)?;
        }
        if steps.is_empty() {
            return Err(unsupported_shape(format!("{} over no element is not supported", node.target)));
        }
        self.slow(node, "the loop is laid out iteration by iteration");
        Ok([carried, self.stacked(&steps)?].concat())
    }

    fn associative_scan(&mut self, node: &Node) -> Result<Vec<Val>, Diagnostic> {
        let step = sub_graph(node, 0)?;
        let (xs, fixed) = (self.operands(node, 1)?, self.operands(node, 2)?);
        let start = self.cx.b.graph.nodes.len();
        let mut steps: Vec<Vec<Val>> = vec![];
        for t in 0..self.trips(node, &xs)? {
            let row = self.rows(&xs, t)?;
            let next = match steps.last() {
                None => row,
                Some(before) => {
                    let all = [before.clone(), row, fixed.clone()].concat();
                    self.apply(step, &format!("{}.{t}", node.name), &all)?
                }
            };
            steps.push(next);
            self.check_size(node, start)?;
        }
        self.slow(node, "the loop is laid out iteration by iteration");
        self.stacked(&steps)
    }

    fn map(&mut self, node: &Node) -> Result<Vec<Val>, Diagnostic> {
        let body = sub_graph(node, 0)?;
        let (xs, fixed) = (self.operands(node, 1)?, self.operands(node, 2)?);
        let start = self.cx.b.graph.nodes.len();
        let mut steps = vec![];
        for t in 0..self.trips(node, &xs)? {
            let all = [self.rows(&xs, t)?, fixed.clone()].concat();
            steps.push(self.apply(body, &format!("{}.{t}", node.name), &all)?);
            self.check_size(node, start)?;
        }
        if steps.is_empty() {
            return Err(unsupported_shape(format!("{} over no element is not supported", node.target)));
        }
        self.slow(node, "the loop is laid out iteration by iteration");
        self.stacked(&steps)
    }

    fn slow(&mut self, node: &Node, reason: &str) {
        self.cx.b.graph.slow.push((node.name.clone(), reason.to_string()));
    }
}

type BuiltVal = Result<Val, Diagnostic>;

/// What is known of a predicate.
enum Choice {
    /// Its value.
    Known(bool),
    /// A 0-d bool.
    Data(ValueId),
}

fn sub_graph(node: &Node, at: usize) -> Result<&SubGraph, Diagnostic> {
    match node.inputs.get(at).map(|i| &i.arg) {
        Some(Arg::Graph(sub)) => Ok(sub),
        _ => Err(unsupported_attribute(format!("{} without a sub-graph as argument {at}", node.target))),
    }
}

impl Cx {
    /// `a` where the 0-d bool is true, else `b`.
    fn select_value(&mut self, choice: ValueId, a: &Val, b: &Val) -> BuiltVal {
        match (a, b) {
            _ if a == b => Ok(a.clone()),
            (Val::Tensor(x), Val::Tensor(y)) => Ok(Val::Tensor(self.select_tensor(choice, *x, *y)?)),
            (Val::Complex { re, im }, Val::Complex { re: re2, im: im2 }) => Ok(Val::Complex {
                re: self.select_tensor(choice, *re, *re2)?,
                im: self.select_tensor(choice, *im, *im2)?,
            }),
            _ => Err(unsupported_shape(format!("branches that give {a:?} and {b:?} are not supported"))),
        }
    }

    fn select_tensor(&mut self, choice: ValueId, a: ValueId, b: ValueId) -> Built {
        let (x, y) = (self.ty(a).clone(), self.ty(b).clone());
        if x != y {
            return Err(unsupported_shape(format!("branches that give {x} and {y} are not supported")));
        }
        self.map3([choice, a, b], x.dtype, |b, [choice, x, y]| b.select(choice, x, y))
    }

    fn stack_values(&mut self, parts: &[&Val]) -> BuiltVal {
        let real = |v: &Val| match v {
            Val::Tensor(v) | Val::Complex { re: v, .. } => Ok(*v),
            other => Err(bad_argument(format!("a loop that gives {other:?}"))),
        };
        let re = parts.iter().map(|v| real(v)).collect::<Result<Vec<_>, _>>()?;
        let re = self.stack(&re, 0)?;
        let im: Vec<ValueId> =
            parts.iter().filter_map(|v| if let Val::Complex { im, .. } = v { Some(*im) } else { None }).collect();
        Ok(if im.is_empty() { Val::Tensor(re) } else { Val::Complex { re, im: self.stack(&im, 0)? } })
    }
}
