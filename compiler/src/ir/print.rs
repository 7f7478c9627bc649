//! The text form of a graph, one line a node: name, op, operands, attributes in declared order, type.
//!
//! ```text
//! graph mlp {
//!   symbol s0 in 1..64
//!   %x = input 0 "x" : f32[s0,16]
//!   %w = weight "fc.weight" : f32[16,8]
//!   %fc = matmul %x, %w : f32[s0,8]
//!   %act = map(max(a, 0.0)) %fc : f32[s0,8]
//!   output "y" = %act
//! }
//! ```
//!
//! Flags are printed when set. Shapes of `reshape` and `broadcast`, and the element type of `reduce`, are those of the result. Constants of
//! more than a few elements are `const #N`, their bytes in hexadecimal after the graph. Everything after `;` is a comment.
//! [`super::parse::parse`] is the inverse, up to origins (comments) and the order of nodes inside a body's arena ([`Body::normalize`]).

mod expr;

use super::eval::Tensor;
use super::graph::{Graph, Node, NodeId, UserInput, UserOutput, ValueId};
use super::op::{Body, Literal, Op, Window};
use super::ty::DType;
use expr::print_body;
use jvc_kernels::spec::{Cell, Combine, ScatterMode};
use std::fmt::Write;

/// What is shown beside the graph itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Style {
    /// Each node's export node, target and module as a comment.
    pub origins: bool,
    /// Bytes of large constants are left out; the text then cannot be parsed.
    pub no_blobs: bool,
}

/// The text of a graph; parses back.
pub fn print(graph: &Graph) -> String {
    print_with(graph, Style::default(), &|_| vec![])
}

/// The text of a graph; `notes` gives comment lines to put under a node's line (`None`: under the last line).
pub fn print_with(graph: &Graph, style: Style, notes: &dyn Fn(Option<NodeId>) -> Vec<String>) -> String {
    let mut p = Printer { graph, style, out: String::new(), blobs: vec![] };
    p.graph(notes);
    p.out
}

/// Constants up to this many elements are printed in place.
const SHORT: usize = 16;

struct Printer<'a> {
    graph: &'a Graph,
    style: Style,
    out: String,
    blobs: Vec<&'a Literal>,
}

impl<'a> Printer<'a> {
    fn line(&mut self, text: &str) {
        self.out.push_str("  ");
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn graph(&mut self, notes: &dyn Fn(Option<NodeId>) -> Vec<String>) {
        let g = self.graph;
        let _ = writeln!(self.out, "graph {} {{", word(&g.name));
        for (name, r) in &g.ranges {
            self.line(&format!("symbol {name} in {}..{}", r.min, r.max));
        }
        for (i, (name, input)) in g.inputs.iter().enumerate() {
            match input {
                UserInput::Tensor(_) => {}
                UserInput::Symbol(s) => self.line(&format!("input {i} {name:?} = symbol {s}")),
                UserInput::Unused => self.line(&format!("input {i} {name:?} = unused")),
            }
        }
        for (i, node) in g.nodes.iter().enumerate() {
            let text = self.node(node);
            self.line(&text);
            self.notes(&notes(Some(NodeId(i as u32))));
        }
        for (name, output) in &g.outputs {
            let text = match output {
                UserOutput::Tensor(v) => value(g, *v),
                UserOutput::Int(d) => format!("int {d}"),
                UserOutput::Constant(text) => format!("constant {text:?}"),
            };
            self.line(&format!("output {name:?} = {text}"));
        }
        for b in &g.bindings {
            self.line(&format!("bind {} = {}", b.symbol, value(g, b.count)));
        }
        for (node, reason) in &g.slow {
            self.line(&format!("slow {node:?} {reason:?}"));
        }
        for (name, v) in &g.state_updates {
            self.line(&format!("state {name:?} = {}", value(g, *v)));
        }
        for (index, v) in &g.input_updates {
            self.line(&format!("update {index} = {}", value(g, *v)));
        }
        self.notes(&notes(None));
        self.out.push_str("}\n");
        if !self.style.no_blobs {
            self.blobs();
        }
    }

    fn notes(&mut self, notes: &[String]) {
        for note in notes {
            self.line(&format!("; {note}"));
        }
    }

    fn blobs(&mut self) {
        for (i, lit) in std::mem::take(&mut self.blobs).into_iter().enumerate() {
            let _ = write!(self.out, "blob #{i} = ");
            for b in lit.bytes.iter() {
                let _ = write!(self.out, "{b:02x}");
            }
            self.out.push('\n');
        }
    }

    fn node(&mut self, node: &'a Node) -> String {
        let g = self.graph;
        let results: Vec<String> = node.outputs.iter().map(|&v| value(g, v)).collect();
        let operands: Vec<String> = node.inputs.iter().map(|&v| value(g, v)).collect();
        let types: Vec<String> = node.outputs.iter().map(|&v| type_text(g, v)).collect();
        let (head, attributes) = self.op(node);
        let mut text = format!("{} = {head}", results.join(", "));
        for part in [operands.join(", "), attributes.join(" ")] {
            if !part.is_empty() {
                let _ = write!(text, " {part}");
            }
        }
        let _ = write!(text, " : {}", types.join(", "));
        if self.style.origins
            && let Some(o) = g.origins.get(node.origin as usize).filter(|o| !o.target.is_empty())
        {
            let _ = write!(text, "  ; {} {} {}", o.node, o.target, o.module);
        }
        text
    }

    /// The op's word with what stands next to it, and the attributes that follow the operands.
    fn op(&mut self, node: &'a Node) -> (String, Vec<String>) {
        let plain = |word: &str| (word.to_string(), vec![]);
        match &node.op {
            Op::Input { index } => (self.input_head(*index, node), vec![]),
            Op::Weight(w) => {
                let names: Vec<String> = w.names().map(|n| format!("{n:?}")).collect();
                (format!("weight {}", names.join(" + ")), vec![])
            }
            Op::State(w) => (format!("state {:?}", w.name), vec![]),
            Op::Const(lit) => (format!("const {}", self.literal(lit)), vec![]),
            Op::Map(body) => (format!("map({})", print_body(body)), vec![]),
            Op::Compute(body) => (format!("compute({})", print_body(body)), vec![]),
            Op::Reshape(_) => plain("reshape"),
            Op::Broadcast(_) => plain("broadcast"),
            Op::Matmul => plain("matmul"),
            op => (op_word(op).to_string(), attributes(op)),
        }
    }

    fn input_head(&self, index: u32, node: &Node) -> String {
        match self.graph.inputs.get(index as usize) {
            Some((name, UserInput::Tensor(v))) if node.outputs.first() == Some(v) => format!("input {index} {name:?}"),
            _ => format!("input {index}"),
        }
    }

    fn literal(&mut self, lit: &'a Literal) -> String {
        if let Some(text) = short_literal(lit) {
            return text;
        }
        self.blobs.push(lit);
        format!("#{}", self.blobs.len() - 1)
    }
}

/// Elements in brackets, if they are few and the text gives back the same bytes.
fn short_literal(lit: &Literal) -> Option<String> {
    let shape = lit.ty.const_shape()?;
    let size = lit.ty.dtype.size_bytes() as usize;
    if lit.bytes.len() > SHORT * size || lit.bytes.len() as i64 != shape.iter().product::<i64>() * size as i64 {
        return None;
    }
    let parts: Vec<String> =
        lit.bytes.chunks(size).map(|b| element_text(lit.ty.dtype, b)).collect::<Option<Vec<_>>>()?;
    Some(format!("[{}]", parts.join(", ")))
}

fn element_text(dtype: DType, bytes: &[u8]) -> Option<String> {
    let t = Tensor::from_bytes(dtype, vec![1], bytes)?;
    if !dtype.is_float() {
        return (t.to_bytes() == bytes).then(|| t.ints()[0].to_string());
    }
    let v = t.floats()[0];
    let text = if dtype == DType::F64 || v.is_nan() { float_text(v) } else { format!("{:?}", v as f32) };
    // A NaN with a payload has no short text.
    let back = Tensor::from_f64(dtype, &[1], vec![text.parse().ok()?]);
    (back.to_bytes() == bytes).then_some(text)
}

/// Shortest text that parses back to the same double; `nan` for any NaN.
pub(super) fn float_text(v: f64) -> String {
    if v.is_nan() { "nan".to_string() } else { format!("{v:?}") }
}

/// `%name`, quoted where the name is not a plain word.
fn value(g: &Graph, v: ValueId) -> String {
    match g.values.get(v.0 as usize) {
        Some(v) => format!("%{}", word(&v.name)),
        None => format!("%<undefined {}>", v.0),
    }
}

fn type_text(g: &Graph, v: ValueId) -> String {
    g.values.get(v.0 as usize).map_or_else(|| "?".to_string(), |v| v.ty.to_string())
}

/// The name itself when it is made of letters, digits, `_` and `.`, else quoted.
fn word(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if !name.is_empty() && name.chars().all(plain) { name.to_string() } else { format!("{name:?}") }
}

/// Every word that [`op_word`] gives, in the order of the enum.
pub const OP_WORDS: [&str; 27] = [
    "input",
    "weight",
    "const",
    "state",
    "map",
    "compute",
    "reshape",
    "permute",
    "slice",
    "pad",
    "concat",
    "broadcast",
    "flip",
    "reduce",
    "softmax",
    "norm",
    "variance",
    "matmul",
    "conv",
    "conv_transpose",
    "pool",
    "attention",
    "recurrent",
    "scan",
    "scatter",
    "sort",
    "fft",
];

/// The word of an op in the text form.
pub fn op_word(op: &Op) -> &'static str {
    match op {
        Op::Input { .. } => "input",
        Op::Weight(_) => "weight",
        Op::Const(_) => "const",
        Op::State(_) => "state",
        Op::Map(_) => "map",
        Op::Compute(_) => "compute",
        Op::Reshape(_) => "reshape",
        Op::Permute(_) => "permute",
        Op::Slice { .. } => "slice",
        Op::Pad { .. } => "pad",
        Op::Concat { .. } => "concat",
        Op::Broadcast(_) => "broadcast",
        Op::Flip(_) => "flip",
        Op::Reduce { .. } => "reduce",
        Op::Softmax { .. } => "softmax",
        Op::Norm { .. } => "norm",
        Op::Variance { .. } => "variance",
        Op::Moments { .. } => "moments",
        Op::Matmul => "matmul",
        Op::Conv { .. } => "conv",
        Op::ConvTranspose { .. } => "conv_transpose",
        Op::Pool { .. } => "pool",
        Op::Attention { .. } => "attention",
        Op::AttentionParts { .. } => "attention_parts",
        Op::Recurrent { .. } => "recurrent",
        Op::Scan { .. } => "scan",
        Op::Scatter { .. } => "scatter",
        Op::Sort { .. } => "sort",
        Op::Fft { .. } => "fft",
    }
}

/// The word of a combination.
pub fn combine_word(c: Combine) -> &'static str {
    match c {
        Combine::Sum => "sum",
        Combine::Prod => "prod",
        Combine::Max => "max",
        Combine::Min => "min",
        Combine::Any => "any",
        Combine::All => "all",
        Combine::ArgMax => "argmax",
        Combine::ArgMin => "argmin",
    }
}

pub(super) const COMBINES: [Combine; 8] = [
    Combine::Sum,
    Combine::Prod,
    Combine::Max,
    Combine::Min,
    Combine::Any,
    Combine::All,
    Combine::ArgMax,
    Combine::ArgMin,
];

pub(super) const CELLS: [Cell; 4] = [Cell::Lstm, Cell::Gru, Cell::RnnTanh, Cell::RnnRelu];

pub(super) fn cell_word(c: Cell) -> &'static str {
    match c {
        Cell::Lstm => "lstm",
        Cell::Gru => "gru",
        Cell::RnnTanh => "rnn_tanh",
        Cell::RnnRelu => "rnn_relu",
    }
}

pub(super) const MODES: [ScatterMode; 5] =
    [ScatterMode::Set, ScatterMode::Add, ScatterMode::Mul, ScatterMode::Max, ScatterMode::Min];

pub(super) fn mode_word(m: ScatterMode) -> &'static str {
    match m {
        ScatterMode::Set => "set",
        ScatterMode::Add => "add",
        ScatterMode::Mul => "mul",
        ScatterMode::Max => "max",
        ScatterMode::Min => "min",
    }
}

fn list<T: ToString>(name: &str, v: &[T]) -> String {
    let parts: Vec<String> = v.iter().map(T::to_string).collect();
    format!("{name}=[{}]", parts.join(","))
}

fn window_text(w: &Window) -> Vec<String> {
    vec![list("stride", &w.stride), list("padding", &w.padding), list("dilation", &w.dilation)]
}

fn attributes(op: &Op) -> Vec<String> {
    let flag = |on: bool, word: &str| on.then(|| word.to_string());
    match op {
        Op::Input { .. } | Op::Weight(_) | Op::Const(_) | Op::State(_) | Op::Map(_) | Op::Compute(_) => vec![],
        Op::Reshape(_) | Op::Broadcast(_) | Op::Matmul => vec![],
        Op::Permute(perm) => vec![list("perm", perm)],
        Op::Slice { dim, start, len, step } => {
            vec![format!("dim={dim}"), format!("start={start}"), format!("len={len}"), format!("step={step}")]
        }
        Op::Pad { before, after, value } => {
            vec![list("before", before), list("after", after), format!("value={}", float_text(*value))]
        }
        Op::Concat { dim } => vec![format!("dim={dim}")],
        Op::Flip(dims) => vec![list("dims", dims)],
        Op::Reduce { combine, dims, dtype: _ } => vec![combine_word(*combine).to_string(), list("dims", dims)],
        Op::Softmax { dim, log } => [Some(format!("dim={dim}")), flag(*log, "log")].into_iter().flatten().collect(),
        Op::Norm { dims, eps, rms } => {
            let eps = format!("eps={}", float_text(*eps));
            [Some(list("dims", dims)), Some(eps), flag(*rms, "rms")].into_iter().flatten().collect()
        }
        Op::Variance { dims, correction } => {
            vec![list("dims", dims), format!("correction={}", float_text(*correction))]
        }
        Op::Moments { each, eps } => {
            let eps = eps.map(|eps| format!("eps={}", float_text(eps)));
            [each.map(|n| format!("each={n}")), eps].into_iter().flatten().collect()
        }
        Op::Conv { window, groups } => [window_text(window), vec![format!("groups={groups}")]].concat(),
        Op::ConvTranspose { window, groups, output_padding } => {
            [window_text(window), vec![format!("groups={groups}"), list("output_padding", output_padding)]].concat()
        }
        Op::Pool { kernel, window, out, max, count_include_pad, divisor, indices } => {
            let mut text = vec![if *max { "max" } else { "average" }.to_string(), list("kernel", kernel)];
            text.extend(window_text(window));
            text.push(list("out", out));
            text.extend(flag(*count_include_pad, "count_include_pad"));
            text.extend(divisor.map(|d| format!("divisor={d}")));
            text.extend(flag(*indices, "indices"));
            text
        }
        Op::Attention { scale, causal, zero_masked_rows, masked } => [
            Some(format!("scale={}", float_text(*scale))),
            flag(*causal, "causal"),
            flag(*zero_masked_rows, "zero_masked_rows"),
            flag(*masked, "masked"),
        ]
        .into_iter()
        .flatten()
        .collect(),
        Op::AttentionParts { scale, masked, parts, len } => {
            let sizes = [format!("scale={}", float_text(*scale)), format!("parts={parts}"), format!("len={len}")];
            sizes.into_iter().chain(flag(*masked, "masked")).collect()
        }
        Op::Recurrent { cell, reverse, bias } => {
            let cell = cell_word(*cell).to_string();
            [Some(cell), flag(*reverse, "reverse"), flag(*bias, "bias")].into_iter().flatten().collect()
        }
        Op::Scan { combine, dim, skip } => {
            let skip = (*skip != 0).then(|| format!("skip={skip}"));
            [Some(combine_word(*combine).to_string()), Some(format!("dim={dim}")), skip].into_iter().flatten().collect()
        }
        Op::Scatter { dims, mode } => vec![mode_word(*mode).to_string(), list("dims", dims)],
        Op::Sort { dim, descending, keep } => {
            let keep = keep.as_ref().map(|k| format!("keep={k}"));
            [Some(format!("dim={dim}")), flag(*descending, "descending"), keep].into_iter().flatten().collect()
        }
        Op::Fft { inverse } => flag(*inverse, "inverse").into_iter().collect(),
    }
}

/// The text of a body, as it stands in `map(…)`: for messages.
pub fn body_text(body: &Body) -> String {
    print_body(body)
}
