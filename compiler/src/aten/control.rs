//! Control flow: `cond`, `while_loop`, `scan`, `associative_scan` and `map` become part of the graph around them.
//!
//! A recording has no jumps, so everything is laid out flat. A predicate that is known at compile time (a counter from a constant) decides
//! then. Otherwise both branches of a `cond` run and each result is selected, which is right because branches have no effects; it leaves
//! a reason, as does every loop. Loops over a dimension (`scan`, `map`) run once per element of a literal size. A loop whose trips the data
//! decide is laid out for as many as `--bound NODE=N` says; trips after the last keep what is carried, and their number is a size that the
//! data decide ([`super::bounded`]): more than N is an error of the run.
//!
//! ```text
//! cond(p, f, g, x)                 select(p, f(x), g(x))
//! scan(f, h, xs)                   h1, y0 = f(h, xs[0])   h2, y1 = f(h1, xs[1])   …   hn, stack(y0, y1, …)
//! while_loop(c, f, x), c known     f(…f(x)…) until c is false
//! while_loop(c, f, x), c of data   a0 = c(x0)   x1 = select(a0, f(x0), x0)   a1 = a0 ∧ c(x1)   …   trips = a0 + a1 + …
//! ```

use super::cx::{Built, Slot};
use super::inline::{flat_names, scoped_graph};
use super::lower::{Lowering, origin_of};
use super::{BodyBuilder, Cx, Val, bad_argument, unsupported_attribute, unsupported_shape};
use crate::import::program::{Arg, Node, ProgramGraph, SubGraph, SymArg};
use crate::ir::{Binding, DType, Dim, Range, ValueId};
use crate::passes::known_value;
use crate::report::{Code, Diagnostic};
use jvc_kernels::dtype::Ty;
use std::collections::BTreeSet;

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
            return Err(unsupported_attribute(
                "branch-writes",
                format!("{} writes one of its operands, which is not supported", sub.name),
            ));
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
                return Err(unsupported_attribute(
                    "branch-operands",
                    format!("{other:?} as an operand of control flow is not supported"),
                ));
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
            Val::Compare(how, a, b) => {
                let (how, a, b) = (*how, a.clone(), b.clone());
                let v = self.cx.compute(vec![], DType::Bool, &[], |body, _| body.compare_sizes(how, &a, &b))?;
                Ok(Choice::Data(v))
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
                Choice::Data(active) => return self.bounded_while(node, carried, &fixed, active, trip),
            }
            carried = self.apply(body, &format!("{}.body{trip}", node.name), &all)?;
            self.check_size(node, start)?;
        }
        self.slow(node, "the loop is laid out iteration by iteration");
        Ok(carried)
    }

    /// The trips of a `while_loop` from number `first` on, of which the first may run if `active` says so.
    fn bounded_while(
        &mut self,
        node: &Node,
        mut carried: Vec<Val>,
        fixed: &[Val],
        mut active: ValueId,
        first: i64,
    ) -> BuiltVals {
        let (test, body) = (sub_graph(node, 0)?, sub_graph(node, 1)?);
        let (most, start) = (self.most_trips(node)?, self.cx.b.graph.nodes.len());
        let mut trips = self.cx.full_int(vec![], DType::I32, first)?;
        for trip in first..most {
            let all = [carried.as_slice(), fixed].concat();
            let next = self.apply(body, &format!("{}.body{trip}", node.name), &all)?;
            self.cx.b.set_origin(origin_of(node));
            let kept = next.iter().zip(&carried).map(|(a, b)| self.cx.select_value(active, a, b));
            carried = kept.collect::<Result<_, _>>()?;
            trips = self.add_truth(trips, active)?;
            let all = [carried.as_slice(), fixed].concat();
            let test = self.apply(test, &format!("{}.test{}", node.name, trip + 1), &all)?;
            active = match self.decide(test.first().unwrap_or(&Val::None))? {
                Choice::Known(true) => active,
                Choice::Known(false) => self.cx.full(vec![], DType::Bool, 0.0)?,
                Choice::Data(go_on) => self.cx.map2(active, go_on, DType::Bool, BodyBuilder::and)?,
            };
            self.check_size(node, start)?;
        }
        // A loop that would go on is one trip beyond the bound.
        let trips = self.add_truth(trips, active)?;
        let symbol = node.name.replace('.', "_");
        self.cx.ranges.insert(symbol.clone(), Range { min: 0, max: most });
        self.cx.b.graph.bindings.push(Binding { symbol, count: trips });
        self.slow(node, "every trip up to the bound runs, whatever the data say");
        Ok(carried)
    }

    fn add_truth(&mut self, n: ValueId, truth: ValueId) -> Built {
        self.cx.map2(n, truth, DType::I32, |b, n, truth| {
            let one = b.cast(Ty::I32, truth);
            b.add(n, one)
        })
    }

    /// `--bound NODE=N` of a loop.
    fn most_trips(&self, node: &Node) -> Result<i64, Diagnostic> {
        let name = node.name.rsplit('.').next().unwrap_or_default();
        self.cx.loop_bounds.get(name).copied().ok_or_else(|| {
            let text = format!("{}: the data decide the number of trips, which has no upper bound", node.target);
            Diagnostic::new(Code::Unbounded, text).with_help(format!("give one with --bound {name}=N"))
        })
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

type BuiltVals = Result<Vec<Val>, Diagnostic>;
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
        _ => Err(bad_argument(format!("{} without a sub-graph as argument {at}", node.target))),
    }
}

/// Names of the loops in a graph whose number of trips may have to be bounded.
pub(super) fn loop_names(graph: &ProgramGraph) -> BTreeSet<String> {
    let inner = graph.nodes.iter().flat_map(|n| &n.inputs).filter_map(|i| match &i.arg {
        Arg::Graph(sub) => Some(loop_names(&sub.graph)),
        _ => None,
    });
    let own = graph.nodes.iter().filter(|n| n.target == "higher_order.while_loop").map(|n| n.name.clone());
    inner.flatten().chain(own).collect()
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
