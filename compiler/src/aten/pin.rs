//! Symbols that the caller decides: `--set` pins them to a literal in the whole program, `--bound` gives open ones an upper bound.

use super::bad_argument;
use super::bounded::is_unbacked;
use crate::import::program::{Arg, NamedArg, Node, ProgramGraph, SubGraph, TensorMeta};
use crate::ir::{Dim, Graph, Range, Ranges};
use crate::options::Options;
use crate::report::{Code, Diagnostic};
use std::collections::{BTreeMap, BTreeSet};

/// Applies the options to the ranges; returns the symbols to replace.
///
/// A bound may also be one of the loops'.
pub(super) fn pins(
    ranges: &mut Ranges,
    options: &Options,
    loops: &BTreeSet<String>,
    problems: &mut Vec<Diagnostic>,
) -> BTreeMap<String, Dim> {
    let mut pins = BTreeMap::new();
    // The symbols of the random stream are there only once the program has drawn: the pipeline pins them.
    let drawn = |symbol: &String| [super::philox::SEED, super::philox::OFFSET].contains(&symbol.as_str());
    for (symbol, &value) in options.set.iter().filter(|(s, _)| !drawn(s)) {
        match ranges.remove(symbol) {
            Some(_) if is_unbacked(symbol) => problems
                .push(bad_argument(format!("--set {symbol}: the data decide this size, --bound {symbol}=N limits it"))),
            Some(r) if value < r.min || value > r.max => {
                problems
                    .push(bad_argument(format!("--set {symbol}={value} is outside its range {}..={}", r.min, r.max)));
            }
            Some(_) => {
                pins.insert(symbol.clone(), Dim::from(value));
            }
            None => problems.push(bad_argument(format!("--set {symbol}: the program has no such symbol"))),
        }
    }
    for (symbol, &max) in options.bound.iter().filter(|(s, _)| !drawn(s) && !loops.contains(*s)) {
        match ranges.get_mut(symbol) {
            Some(r) if max < r.min => {
                problems.push(bad_argument(format!("--bound {symbol}={max} is below its minimum {}", r.min)));
            }
            Some(r) => *r = Range { min: r.min, max: r.max.min(max) },
            None => problems.push(bad_argument(format!("--bound {symbol}: the program has no such symbol"))),
        }
    }
    pins
}

/// The graph with symbols replaced in every recorded size.
pub(super) fn pinned(graph: &ProgramGraph, pins: &BTreeMap<String, Dim>) -> ProgramGraph {
    let sub = |d: &Dim| d.substitute(pins);
    let dims = |list: &[Dim]| list.iter().map(sub).collect();
    let meta = |m: &TensorMeta| TensorMeta {
        dtype: m.dtype,
        sizes: dims(&m.sizes),
        strides: dims(&m.strides),
        storage_offset: sub(&m.storage_offset),
    };
    let arg = |i: &NamedArg| match &i.arg {
        Arg::Graph(g) => {
            let inner = SubGraph { name: g.name.clone(), graph: pinned(&g.graph, pins) };
            NamedArg { name: i.name.clone(), arg: Arg::Graph(Box::new(inner)) }
        }
        _ => i.clone(),
    };
    let node = |n: &Node| Node { inputs: n.inputs.iter().map(arg).collect(), ..n.clone() };
    ProgramGraph {
        inputs: graph.inputs.clone(),
        outputs: graph.outputs.clone(),
        nodes: graph.nodes.iter().map(node).collect(),
        tensors: graph.tensors.iter().map(|(n, m)| (n.clone(), meta(m))).collect(),
        sym_ints: graph.sym_ints.iter().map(|(n, d)| (n.clone(), sub(d))).collect(),
        is_single_tensor_return: graph.is_single_tensor_return,
    }
}

/// Every symbol in a size must have an upper bound, since memory is planned at it.
pub(super) fn check_bounded(graph: &Graph, problems: &mut Vec<Diagnostic>) {
    let mut symbols: Vec<String> = graph.values.iter().flat_map(|v| v.ty.shape.iter().flat_map(Dim::symbols)).collect();
    symbols.sort();
    symbols.dedup();
    for symbol in symbols {
        let open = graph.ranges.get(&symbol).is_none_or(|r| r.max == i64::MAX);
        if open {
            let message = format!("symbol {symbol} has no upper bound");
            let help = format!("give one with --bound {symbol}=N, or pin it with --set {symbol}=N");
            problems.push(Diagnostic::new(Code::Unbounded, message).with_help(help));
        }
    }
}
