//! Drives the rules over a program: inputs, nodes in order, outputs, and the writes that leave the program.

use super::alias::{Home, Tracked};
use super::args::Call;
use super::cx::{Cx, Slot, ir_dtype};
use super::schema::Schema;
use super::{Rule, Val, bad_argument, by_parts, layout, limits, no_rule, rules, unsupported_dtype};
use crate::import::program::{Arg, InputSpec, Node, OutputSpec, Program, ProgramGraph, ScalarType, SymArg, TensorMeta};
use crate::ir::graph::{Tap, TapPart};
use crate::ir::{DType, Dim, Graph, Op, Origin, TensorType, UserInput, UserOutput, ValueId, WeightRef};
use crate::options::Options;
use crate::report::Diagnostic;
use std::collections::BTreeMap;

/// A lowering in progress.
pub(super) struct Lowering<'a> {
    pub(super) cx: Cx,
    pub(super) autocast: bool,
    program: &'a Program,
    rules: BTreeMap<&'static str, Rule>,
    problems: Vec<Diagnostic>,
    /// Graph name of each user input → its position.
    user_inputs: BTreeMap<String, u32>,
}

/// The IR of a program.
///
/// # Errors
/// Everything in the program that cannot be compiled, in program order. A node that fails does not hide those after it: its results
/// stand in with their recorded types.
pub fn lower(program: &Program, options: &Options) -> Result<Graph, Vec<Diagnostic>> {
    let mut problems = vec![];
    let mut cx = Cx::new(&program.name);
    cx.ranges = program.ranges.clone();
    let loops = super::control::loop_names(&program.graph);
    cx.loop_bounds = options.bound.iter().filter(|(n, _)| loops.contains(*n)).map(|(n, &v)| (n.clone(), v)).collect();
    let pins = super::pin::pins(&mut cx.ranges, options, &loops, &mut problems);
    let pinned = (!pins.is_empty()).then(|| super::pin::pinned(&program.graph, &pins));
    let graph = pinned.as_ref().unwrap_or(&program.graph);
    let user_inputs = BTreeMap::new();
    let mut l = Lowering { cx, autocast: false, program, rules: rules(), problems, user_inputs };
    l.bind_inputs(graph);
    for node in &graph.nodes {
        l.run_node(graph, node);
        l.tap(node);
    }
    l.bind_outputs(graph);
    l.finish()
}

/// The functional form of an operator that writes its first operand (`aten.add_.Tensor` → `aten.add.Tensor`, `aten.__iand__.Tensor` →
/// `aten.__and__.Tensor`) or its last (`aten.atan2.out` → `aten.atan2.default`).
pub(super) fn functional_name(target: &str) -> Option<String> {
    let mut parts = target.split('.');
    let (space, op, overload) = (parts.next()?, parts.next()?, parts.next()?);
    if let Some(inner) = op.strip_prefix("__i").filter(|i| i.ends_with("__") && !op.starts_with("__invert")) {
        return Some(format!("{space}.__{inner}.{overload}"));
    }
    if let Some(inner) = overload.strip_suffix("out") {
        let names = [inner.trim_end_matches('_'), "default", "Tensor"].into_iter().filter(|n| !n.is_empty());
        return names.map(|n| format!("{space}.{op}.{n}")).find(|n| Schema::find(n).is_some());
    }
    let op = op.strip_suffix('_').filter(|o| !o.ends_with('_'))?;
    // Overloads that have another name in the functional form.
    let overload = match (op, overload) {
        ("pow" | "float_power", "Scalar") => "Tensor_Scalar",
        ("pow" | "float_power", "Tensor") => "Tensor_Tensor",
        ("transpose", "default") => "int",
        ("floor_divide", "Tensor") => "default",
        ("bernoulli", "float") => "p",
        ("ldexp", "default") => "Tensor",
        (_, other) => other,
    };
    Some(format!("{space}.{op}.{overload}"))
}

/// Inputs.
impl Lowering<'_> {
    fn bind_inputs(&mut self, graph: &ProgramGraph) {
        let mut names = self.program.input_names.iter();
        for spec in &self.program.inputs {
            let (label, result) = match spec {
                InputSpec::Weight { arg, name, .. } => (arg.clone(), self.bind_weight(graph, arg, name)),
                InputSpec::User(arg) => {
                    let name = names.next().cloned().unwrap_or_default();
                    (name.clone(), self.bind_user_input(graph, arg, name))
                }
                InputSpec::Constant { name, .. } => {
                    let label = names.next().cloned().unwrap_or_else(|| name.clone());
                    self.cx.b.graph.inputs.push((label, UserInput::Unused));
                    continue;
                }
                InputSpec::Opaque(name) => {
                    self.cx.names.insert(name.clone(), Slot::Failed);
                    continue;
                }
            };
            if let Err(d) = result {
                self.problems.push(d.at(&Origin { node: label, ..Origin::default() }));
            }
        }
        for (name, dim) in &graph.sym_ints {
            self.cx.names.entry(name.clone()).or_insert_with(|| Slot::Plain(Val::Int(dim.clone())));
        }
    }

    fn bind_weight(&mut self, graph: &ProgramGraph, arg: &str, name: &str) -> Result<(), Diagnostic> {
        self.cx.names.insert(arg.to_string(), Slot::Failed);
        let view = self.program.weights.get(name);
        let (dtype, shape) = match (graph.tensors.get(arg), view) {
            (Some(meta), _) => (meta.dtype, meta.sizes.clone()),
            (None, Some(view)) => (view.dtype, view.sizes.iter().map(|&s| Dim::from(s)).collect()),
            (None, None) => return Err(bad_argument(format!("the archive has no weight `{name}`"))),
        };
        let op = Op::Weight(WeightRef::new(name));
        let bits = super::small_float::storage(dtype).map_or_else(|| ir_dtype(dtype), Ok)?;
        let (value, node) = self.leaf(op, arg, dtype.is_complex(), TensorType::new(bits, shape))?;
        if super::small_float::storage(dtype).is_some() {
            let Val::Tensor(raw) = value else { return Ok(()) };
            let decoded = super::small_float::decode(&mut self.cx, raw, dtype)?;
            let tracked = self.cx.track_new(decoded.into(), None);
            self.cx.names.insert(arg.to_string(), Slot::Tensor(tracked));
            return Ok(());
        }
        let tracked = self.cx.track_new(value, Some(Home::Weight(name.to_string(), node)));
        self.cx.names.insert(arg.to_string(), Slot::Tensor(tracked));
        Ok(())
    }

    /// A leaf; a complex one has the parts of each element side by side in a last dimension of 2.
    fn leaf(&mut self, op: Op, name: &str, complex: bool, mut ty: TensorType) -> Result<(Val, ValueId), Diagnostic> {
        self.cx.b.set_origin(Origin { node: name.to_string(), ..Origin::default() });
        if complex {
            ty.shape.push(Dim::from(2));
        }
        let v = self.cx.b.push(op, vec![], vec![ty])[0];
        let value = if complex { self.cx.deinterleave(v)? } else { Val::Tensor(v) };
        Ok((value, v))
    }

    fn bind_user_input(&mut self, graph: &ProgramGraph, arg: &Arg, name: String) -> Result<(), Diagnostic> {
        let index = self.cx.b.graph.inputs.len() as u32;
        self.cx.b.graph.inputs.push((name, UserInput::Unused));
        let input = match arg {
            Arg::Tensor(n) => {
                self.cx.names.insert(n.clone(), Slot::Failed);
                let meta = graph.tensors.get(n);
                let meta = meta.ok_or_else(|| bad_argument(format!("input `{n}` has no recorded type")))?;
                let ty = TensorType::new(ir_dtype(meta.dtype)?, meta.sizes.clone());
                let (value, leaf) = self.leaf(Op::Input { index }, n, meta.dtype.is_complex(), ty)?;
                let tracked = self.cx.track_new(value, Some(Home::Input(index)));
                self.cx.names.insert(n.clone(), Slot::Tensor(tracked));
                self.user_inputs.insert(n.clone(), index);
                UserInput::Tensor(leaf)
            }
            Arg::SymInt(SymArg::Name(n)) => {
                let dim = graph.sym_ints.get(n).cloned().unwrap_or_else(|| Dim::symbol(n));
                self.cx.names.insert(n.clone(), Slot::Plain(Val::Int(dim.clone())));
                symbol_input(&dim)?
            }
            _ => UserInput::Unused,
        };
        self.cx.b.graph.inputs[index as usize].1 = input;
        Ok(())
    }
}

/// Where a node's values come from.
pub(super) fn origin_of(node: &Node) -> Origin {
    Origin {
        node: node.name.clone(),
        target: node.target.clone(),
        module: node.module.clone(),
        line: node.line.clone(),
    }
}

/// An integer input binds a bare symbol; one that is pinned is accepted and ignored.
fn symbol_input(dim: &Dim) -> Result<UserInput, Diagnostic> {
    if dim.as_const().is_some() {
        return Ok(UserInput::Unused);
    }
    match dim.symbols().as_slice() {
        [one] if *dim == Dim::symbol(one) => Ok(UserInput::Symbol(one.clone())),
        _ => Err(bad_argument(format!("an integer input that is {dim}, not a symbol, is not supported"))),
    }
}

/// Nodes.
impl Lowering<'_> {
    /// Problems so far.
    pub(super) fn n_problems(&self) -> usize {
        self.problems.len()
    }

    /// A parameter or lifted constant, which no program writes; `None` for buffers and without data.
    pub(super) fn constant_tensor(&self, name: &str) -> Option<crate::ir::eval::Tensor> {
        let constant = |spec: &InputSpec| matches!(spec, InputSpec::Weight { name: n, buffer: false, .. } if n == name);
        let found = self.program.inputs.iter().any(constant);
        found.then(|| crate::passes::checkpoint_tensor(&self.program.weights, name)).flatten()
    }

    /// Lowers one node; on failure notes why and lets its results stand in with their recorded types.
    pub(super) fn run_node(&mut self, graph: &ProgramGraph, node: &Node) {
        let origin = origin_of(node);
        self.cx.b.set_origin(origin.clone());
        self.cx.cascade = false;
        let result = if node.target.starts_with("higher_order.") {
            self.higher_order(graph, node)
        } else {
            self.call(graph, node)
        };
        if let Err(d) = result {
            if !self.cx.cascade {
                self.problems.push(d.at(&origin));
            }
            self.stand_in(graph, node);
        }
    }

    /// Notes which values a node's tensors are.
    fn tap(&mut self, node: &Node) {
        let names = node.outputs.iter().flat_map(|o| match o {
            Arg::Tensor(name) => std::slice::from_ref(name),
            Arg::Tensors(names) => names,
            _ => &[],
        });
        for name in names {
            let parts = match self.cx.names.get(name) {
                Some(Slot::Tensor(Tracked { value: Val::Tensor(v), .. })) => vec![(TapPart::Whole, *v)],
                Some(Slot::Tensor(Tracked { value: Val::Complex { re, im }, .. })) => {
                    vec![(TapPart::Re, *re), (TapPart::Im, *im)]
                }
                _ => continue,
            };
            let taps = parts.into_iter().map(|(part, value)| Tap { name: name.clone(), part, value });
            self.cx.b.graph.taps.extend(taps);
        }
    }

    fn call(&mut self, graph: &ProgramGraph, node: &Node) -> Result<(), Diagnostic> {
        let functional = functional_name(&node.target).filter(|_| !self.rules.contains_key(node.target.as_str()));
        let target = functional.as_deref().unwrap_or(&node.target);
        let Some(&rule) = self.rules.get(target) else {
            return Err(no_rule(&node.target));
        };
        let mut call = Call::new(&mut self.cx, graph, node, target)?;
        if self.autocast && !is_conversion(target) {
            call.autocast = call.meta(0).and_then(|m| m.dtype.dtype()).filter(|d| d.is_float() && *d != DType::F64);
        }
        let is_view = Schema::find(target).is_some_and(|s| s.view);
        if functional.is_some() && !is_view {
            return self.write_in_place(&call, rule);
        }
        let source = layout::aliased(&call, is_view).map(str::to_string);
        let base = source.as_deref().map(|n| self.tracked(n)).transpose()?;
        let results = by_parts::run(&mut self.cx, &call, rule).inspect_err(|d| listed(d, target))?;
        self.bind_results(&call, results, base.flatten(), functional.is_some().then_some(source).flatten())
    }

    fn tracked(&mut self, name: &str) -> Result<Option<Tracked>, Diagnostic> {
        self.cx.read(name)?;
        Ok(match self.cx.names.get(name) {
            Some(Slot::Tensor(t)) => Some(t.clone()),
            _ => None,
        })
    }

    /// Runs the functional rule and writes its result, in the operand's type and shape, through the operand's name.
    fn write_in_place(&mut self, call: &Call<'_>, rule: Rule) -> Result<(), Diagnostic> {
        let arg = match call.given("out") {
            Some(_) => "out",
            None => Schema::find(&call.node.target).and_then(Schema::mutated).map_or("self", |a| a.name),
        };
        let Some(Arg::Tensor(name)) = call.given(arg) else {
            return Err(bad_argument(format!("{} without a tensor to write", call.node.target)));
        };
        let old = self.tracked(name)?.ok_or_else(|| bad_argument(format!("`{name}` is not a tensor")))?;
        let result = by_parts::run(&mut self.cx, call, rule)?.into_iter().next();
        let result = result.ok_or_else(|| bad_argument(format!("{} gives no tensor to write", call.target)))?;
        let new = self.fitted(result, &old.value)?;
        let new = match call.meta(0) {
            Some(meta) => self.cx.check_recorded(new, meta)?,
            None => new,
        };
        let written = self.cx.write_tracked(&old, new)?;
        self.cx.names.insert(name.clone(), Slot::Tensor(written.clone()));
        if let Some(Arg::Tensor(out)) = call.node.outputs.first() {
            self.cx.names.insert(out.clone(), Slot::Tensor(written));
        }
        Ok(())
    }

    /// A result in the element type and shape of the tensor that it replaces.
    fn fitted(&mut self, new: Val, old: &Val) -> Result<Val, Diagnostic> {
        match (new, old) {
            (Val::Tensor(n), Val::Tensor(o)) => self.fit(n, *o).map(Val::Tensor),
            (Val::Complex { re, im }, Val::Complex { re: o, .. }) => {
                Ok(Val::Complex { re: self.fit(re, *o)?, im: self.fit(im, *o)? })
            }
            (Val::Tensor(n), Val::Complex { re: o, .. }) => {
                let re = self.fit(n, *o)?;
                let (shape, dtype) = (self.cx.shape(re), self.cx.tensor_dtype(re));
                Ok(Val::Complex { re, im: self.cx.full(shape, dtype, 0.0)? })
            }
            _ => Err(bad_argument("a result that cannot be written to its operand")),
        }
    }

    fn fit(&mut self, new: ValueId, old: ValueId) -> Result<ValueId, Diagnostic> {
        let to = self.cx.ty(old).clone();
        let cast = self.cx.cast(new, to.dtype)?;
        self.cx.broadcast_to(cast, &to.shape)
    }

    fn bind_results(
        &mut self,
        call: &Call<'_>,
        results: Vec<Val>,
        base: Option<Tracked>,
        renamed: Option<String>,
    ) -> Result<(), Diagnostic> {
        let outputs = &call.node.outputs;
        if results.len() < outputs.len() {
            let (want, got) = (outputs.len(), results.len());
            return Err(bad_argument(format!("{} gives {got} results, the export names {want}", call.target)));
        }
        for (output, value) in outputs.iter().zip(results) {
            match (output, value) {
                (Arg::Tensors(names), Val::List(items)) => {
                    if names.len() != items.len() {
                        let (want, got) = (names.len(), items.len());
                        return Err(bad_argument(format!(
                            "{} gives {got} tensors, the export names {want}",
                            call.target
                        )));
                    }
                    for (name, item) in names.iter().zip(items) {
                        self.bind_tensor(call, name, item, base.as_ref())?;
                    }
                }
                (Arg::Tensor(name), value) => {
                    self.bind_tensor(call, name, value, base.as_ref())?;
                    if let (Some(old), Some(slot)) = (&renamed, self.cx.names.get(name).cloned()) {
                        self.cx.names.insert(old.clone(), slot);
                    }
                }
                (output, value) => self.bind_number(output, value),
            }
        }
        Ok(())
    }

    fn bind_tensor(
        &mut self,
        call: &Call<'_>,
        name: &str,
        value: Val,
        base: Option<&Tracked>,
    ) -> Result<(), Diagnostic> {
        if value == Val::None {
            // A result that the operator leaves undefined in this mode; whoever reads it is told.
            self.cx.names.insert(name.to_string(), Slot::Plain(Val::None));
            return Ok(());
        }
        let value = match call.recorded(name) {
            // Torch's tracing records final states of recurrent layers with a dimension of size 1 that eager runs do not have.
            Some(meta) if is_recurrent(call.target) && meta.sizes.len() == 4 => value,
            // Torch's tracing records positions and counts in the type of the values.
            Some(meta) if call.target.contains("unique") && self.is_whole(&value) && meta.dtype != ScalarType::I64 => {
                value
            }
            Some(meta) => self.cx.check_recorded(value, meta)?,
            None => value,
        };
        let tracked = match base {
            Some(base) => {
                let from = base.value.clone();
                self.cx.track_view(base, &from, value, call.target)
            }
            None => self.cx.track_new(value, None),
        };
        self.cx.names.insert(name.to_string(), Slot::Tensor(tracked));
        Ok(())
    }

    fn is_whole(&self, v: &Val) -> bool {
        matches!(v, Val::Tensor(x) if self.cx.tensor_dtype(*x) == DType::I64)
    }

    /// A symbolic number: the export's own formula, where it has one, else the computed value.
    fn bind_number(&mut self, output: &Arg, value: Val) {
        let name = match output {
            Arg::SymInt(SymArg::Name(n)) | Arg::SymFloat(SymArg::Name(n)) | Arg::SymBool(SymArg::Name(n)) => n,
            _ => return,
        };
        self.cx.names.entry(name.clone()).or_insert(Slot::Plain(value));
    }

    fn stand_in(&mut self, graph: &ProgramGraph, node: &Node) {
        let tensors = node.outputs.iter().flat_map(|o| match o {
            Arg::Tensor(n) => vec![n.clone()],
            Arg::Tensors(list) => list.clone(),
            _ => vec![],
        });
        for name in tensors {
            let value = graph.tensors.get(&name).map(|m| self.recorded_stand_in(m));
            let slot = match value {
                Some(Ok(v)) => Slot::Tensor(self.cx.track_new(v, None)),
                _ => Slot::Failed,
            };
            self.cx.names.insert(name, slot);
        }
        for output in &node.outputs {
            if let Arg::SymInt(SymArg::Name(n)) | Arg::SymFloat(SymArg::Name(n)) | Arg::SymBool(SymArg::Name(n)) =
                output
            {
                self.cx.names.entry(n.clone()).or_insert(Slot::Failed);
            }
        }
    }

    fn recorded_stand_in(&mut self, meta: &TensorMeta) -> Result<Val, Diagnostic> {
        let dtype = ir_dtype(meta.dtype)?;
        let re = self.cx.full(meta.sizes.clone(), dtype, 0.0)?;
        Ok(if meta.dtype.is_complex() { Val::Complex { re, im: re } } else { Val::Tensor(re) })
    }
}

/// A rule refuses only by limits that `jvc ops` lists for its operator.
fn listed(refusal: &Diagnostic, target: &str) {
    let known = |code| limits::LIMITS.iter().any(|l| l.code == code && limits::applies(l, target));
    debug_assert!(refusal.limit.is_none_or(known), "{target} does not list its limit: {refusal}");
}

fn is_recurrent(target: &str) -> bool {
    matches!(target, "aten.lstm.input" | "aten.gru.input" | "aten.rnn_tanh.input" | "aten.rnn_relu.input")
}

/// Conversions keep their own type in an autocast region.
fn is_conversion(target: &str) -> bool {
    target.starts_with("aten.to.") || target.starts_with("aten._to_copy.") || target == "aten.type_as.default"
}

/// Outputs.
impl Lowering<'_> {
    fn bind_outputs(&mut self, graph: &ProgramGraph) {
        self.cx.b.set_origin(Origin::default());
        let mut names = self.program.output_names.iter();
        for spec in &self.program.outputs {
            let result = match spec {
                OutputSpec::User(arg) => {
                    let name = names.next().cloned().unwrap_or_default();
                    self.user_output(graph, arg, name)
                }
                OutputSpec::BufferMutation(value, buffer) => self.buffer_update(value, buffer),
                OutputSpec::InputMutation(value, input) => self.input_update(value, input),
                OutputSpec::Other(what) => Err(bad_argument(format!("program output of kind {what} is not supported"))),
            };
            if let Err(d) = result
                && !self.cx.cascade
            {
                self.problems.push(d);
            }
        }
        if let Err(d) = self.written_homes() {
            self.problems.push(d);
        }
    }

    fn user_output(&mut self, graph: &ProgramGraph, arg: &Arg, name: String) -> Result<(), Diagnostic> {
        self.cx.cascade = false;
        let out = match arg {
            Arg::Tensor(n) => {
                let v = self.cx.read(n)?;
                UserOutput::Tensor(self.boundary(v)?)
            }
            Arg::Int(v) => UserOutput::Int(Dim::from(*v)),
            Arg::SymInt(SymArg::Value(v)) => UserOutput::Int(Dim::from(*v)),
            Arg::SymInt(SymArg::Name(n)) => match (graph.sym_ints.get(n), self.cx.read(n)) {
                (Some(d), _) => UserOutput::Int(d.clone()),
                (None, Ok(Val::Int(d))) => UserOutput::Int(d),
                (None, other) => {
                    return Err(bad_argument(format!("program output `{n}` is {other:?}, not an integer")));
                }
            },
            Arg::None => UserOutput::Constant("None".to_string()),
            Arg::Float(v) => UserOutput::Constant(v.to_string()),
            Arg::Bool(v) => UserOutput::Constant(if *v { "True" } else { "False" }.to_string()),
            Arg::Str(v) => UserOutput::Constant(v.clone()),
            Arg::SymFloat(SymArg::Name(n)) | Arg::SymBool(SymArg::Name(n)) => {
                let text = format!("the Python number `{n}` as an output is not supported: keep it a tensor");
                return Err(unsupported_dtype(text));
            }
            other => return Err(bad_argument(format!("program output {other:?} is not supported"))),
        };
        self.cx.b.graph.outputs.push((name, out));
        Ok(())
    }

    /// A value as it crosses the program's boundary: complex ones with a last dimension of 2.
    fn boundary(&mut self, v: Val) -> Result<ValueId, Diagnostic> {
        match v {
            Val::Tensor(x) => Ok(x),
            Val::Complex { re, im } => self.cx.interleave(re, im),
            other => Err(bad_argument(format!("program output {other:?} is not a tensor"))),
        }
    }

    fn buffer_update(&mut self, value: &str, buffer: &str) -> Result<(), Diagnostic> {
        let v = self.cx.read(value)?;
        let v = self.boundary(v)?;
        self.make_state(buffer);
        self.cx.b.graph.state_updates.push((buffer.to_string(), v));
        Ok(())
    }

    fn input_update(&mut self, value: &str, input: &str) -> Result<(), Diagnostic> {
        let v = self.cx.read(value)?;
        let v = self.boundary(v)?;
        let at = self.user_inputs.get(input).copied();
        let at = at.ok_or_else(|| bad_argument(format!("mutation of `{input}`, which is no user input")))?;
        self.cx.b.graph.input_updates.push((at, v));
        Ok(())
    }

    /// The buffer's node gives its value at the start of a run instead of a constant.
    fn make_state(&mut self, buffer: &str) {
        for node in &mut self.cx.b.graph.nodes {
            if let Op::Weight(w) = &node.op
                && w.name == buffer
            {
                node.op = Op::State(w.clone());
            }
        }
    }

    /// In-place writes that reached a weight or a user input (the training form lists none in its signature).
    fn written_homes(&mut self) -> Result<(), Diagnostic> {
        for i in 0..self.cx.groups.len() {
            let group = &self.cx.groups[i];
            let (Some(home), true) = (group.home.clone(), group.version > 0) else { continue };
            let base = group.base.clone();
            let v = self.boundary(base)?;
            match home {
                Home::Weight(name, _) => {
                    self.make_state(&name);
                    self.cx.b.graph.state_updates.push((name, v));
                }
                Home::Input(index) => self.cx.b.graph.input_updates.push((index, v)),
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Graph, Vec<Diagnostic>> {
        self.cx.b.graph.ranges = self.cx.ranges.clone();
        super::pin::check_bounded(&self.cx.b.graph, &mut self.problems);
        if self.problems.is_empty() { Ok(self.cx.b.graph) } else { Err(self.problems) }
    }
}
