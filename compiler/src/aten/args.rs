//! A call as a rule sees it: arguments by schema name, schema defaults filled in, symbolic numbers resolved.

use super::by_parts::Parts;
use super::cx::Cx;
use super::schema::Schema;
use super::{Val, bad_argument, unsupported_attribute, unsupported_shape};
use crate::import::program::{Arg, Node, ProgramGraph, ScalarType, SymArg, TensorMeta};
use crate::ir::{DType, Dim, ValueId};
use crate::report::{Code, Diagnostic};
use std::collections::BTreeMap;

/// One call of an operator.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// The node of the export.
    pub node: &'a Node,
    /// Operator that the rule computes: the node's, or for an in-place one (`aten.add_.Tensor`) its functional form.
    pub target: &'a str,
    schema: Option<&'static Schema>,
    graph: &'a ProgramGraph,
    numbers: BTreeMap<&'a str, Val>,
    /// In an autocast region: the floating type to which operands are converted.
    pub(super) autocast: Option<DType>,
    /// Which part of its complex operands a rule for real ones is run on.
    pub(super) parts: Parts<'a>,
}

type Got<T> = Result<T, Diagnostic>;

impl<'a> Call<'a> {
    /// Resolves symbolic numbers among the arguments.
    ///
    /// # Errors
    /// When an argument names a symbolic value that nothing computed.
    pub fn new(cx: &mut Cx, graph: &'a ProgramGraph, node: &'a Node, target: &'a str) -> Got<Call<'a>> {
        let schema = Schema::find(&node.target).or_else(|| Schema::find(target));
        let mut numbers = BTreeMap::new();
        for input in &node.inputs {
            if let Some(v) = resolve(cx, &input.arg)? {
                numbers.insert(input.name.as_str(), v);
            }
        }
        Ok(Call { node, target, schema, graph, numbers, autocast: None, parts: Parts::default() })
    }

    /// Recorded type of output `i`; of a list, of its first tensor.
    pub fn meta(&self, i: usize) -> Option<&'a TensorMeta> {
        let name = match self.node.outputs.get(i)? {
            Arg::Tensor(n) => n,
            Arg::Tensors(list) => list.first()?,
            _ => return None,
        };
        self.graph.tensors.get(name)
    }

    /// Recorded type of a tensor of the program.
    pub(super) fn recorded(&self, name: &str) -> Option<&'a TensorMeta> {
        self.graph.tensors.get(name)
    }

    /// Recorded type of a tensor argument.
    pub fn arg_meta(&self, name: &str) -> Option<&'a TensorMeta> {
        match self.given(name)? {
            Arg::Tensor(n) => self.graph.tensors.get(n),
            _ => None,
        }
    }

    /// Name of the first argument (`self`, `input`, …).
    pub fn first(&self) -> &'a str {
        self.node.inputs.first().map_or("self", |i| i.name.as_str())
    }

    /// Number of dimensions of the first argument.
    pub fn rank(&self, cx: &mut Cx) -> Got<usize> {
        match self.value(cx, self.first())? {
            Val::Tensor(x) | Val::Complex { re: x, .. } => Ok(cx.rank(x)),
            _ => self.wrong(self.first(), "a tensor"),
        }
    }

    /// The argument as the export gave it.
    pub fn given(&self, name: &str) -> Option<&'a Arg> {
        self.node.inputs.iter().find(|i| i.name == name).map(|i| &i.arg)
    }

    /// True when the operator has such an argument, or the export gives one.
    pub fn has(&self, name: &str) -> bool {
        self.given(name).is_some() || self.schema.is_some_and(|s| s.arg(name).is_some())
    }

    /// The argument or its default.
    fn arg(&self, name: &str) -> Got<&Arg> {
        if let Some(arg) = self.given(name) {
            return Ok(arg);
        }
        let default = self.schema.and_then(|s| s.arg(name)).and_then(|a| a.default.as_ref());
        default.ok_or_else(|| bad_argument(format!("{} has no argument `{name}`", self.target)))
    }

    fn wrong<T>(&self, name: &str, want: &str) -> Got<T> {
        let got = self.given(name);
        Err(bad_argument(format!("argument `{name}` of {} is {got:?}, not {want}", self.target)))
    }

    /// A number or list of numbers as a value; `None` for tensors and absent ones.
    fn number(&self, name: &str) -> Got<Option<Val>> {
        if let Some(v) = self.numbers.get(name) {
            return Ok(Some(v.clone()));
        }
        Ok(literal(self.arg(name)?))
    }

    /// Names of arguments that are tensors or lists of them, each with whether one of them is complex.
    pub(super) fn tensor_arguments(&self, cx: &mut Cx) -> Got<Vec<(&'a str, bool)>> {
        let mut out = vec![];
        for input in &self.node.inputs {
            let names: Vec<&String> = match &input.arg {
                Arg::Tensor(n) => vec![n],
                Arg::Tensors(list) => list.iter().collect(),
                Arg::OptionalTensors(list) => list.iter().flatten().collect(),
                _ => continue,
            };
            let mut complex = false;
            for n in names {
                complex |= matches!(cx.read(n)?, Val::Complex { .. });
            }
            out.push((input.name.as_str(), complex));
        }
        Ok(out)
    }

    fn read(&self, cx: &mut Cx, name: &str) -> Got<Val> {
        match (cx.read(name)?, self.autocast) {
            (Val::Tensor(v), Some(to)) if cx.tensor_dtype(v).is_float() && cx.tensor_dtype(v) != DType::F64 => {
                cx.cast(v, to).map(Val::Tensor)
            }
            (v, _) => Ok(v),
        }
    }

    /// Any tensor, real or complex.
    pub fn value(&self, cx: &mut Cx, name: &str) -> Got<Val> {
        match self.arg(name)? {
            Arg::Tensor(n) => {
                let v = self.read(cx, n)?;
                self.parts.of(cx, name, v)
            }
            _ => self.wrong(name, "a tensor"),
        }
    }

    /// Any tensor, or `Val::None`.
    pub fn opt_value(&self, cx: &mut Cx, name: &str) -> Got<Val> {
        match self.arg(name)? {
            Arg::None => Ok(Val::None),
            _ => self.value(cx, name),
        }
    }

    /// A tensor or a number, as binary operators take them.
    pub fn operand(&self, cx: &mut Cx, name: &str) -> Got<Val> {
        match self.number(name)? {
            Some(v) if !matches!(v, Val::None) => Ok(self.parts.of_number(name, v)),
            _ => self.value(cx, name),
        }
    }

    /// A real tensor.
    pub fn tensor(&self, cx: &mut Cx, name: &str) -> Got<ValueId> {
        let v = self.value(cx, name)?;
        self.real(v, name)
    }

    /// A real tensor, if one is given.
    pub fn opt_tensor(&self, cx: &mut Cx, name: &str) -> Got<Option<ValueId>> {
        match self.opt_value(cx, name)? {
            Val::None => Ok(None),
            v => self.real(v, name).map(Some),
        }
    }

    fn real(&self, v: Val, name: &str) -> Got<ValueId> {
        match v {
            Val::Tensor(v) => Ok(v),
            _ => Err(Diagnostic::new(
                Code::UnsupportedDType,
                format!("{} of complex `{name}` is not supported", self.target),
            )),
        }
    }

    /// A list of tensors, real or complex.
    pub fn values(&self, cx: &mut Cx, name: &str) -> Got<Vec<Val>> {
        let one = |cx: &mut Cx, n: &str| {
            let v = self.read(cx, n)?;
            self.parts.of(cx, name, v)
        };
        match self.arg(name)? {
            Arg::Tensors(names) => names.iter().map(|n| one(cx, n)).collect(),
            Arg::OptionalTensors(names) => {
                names.iter().map(|n| n.as_ref().map_or(Ok(Val::None), |n| one(cx, n))).collect()
            }
            Arg::Ints(list) if list.is_empty() => Ok(vec![]),
            _ => self.wrong(name, "a list of tensors"),
        }
    }

    /// A list of real tensors.
    pub fn tensors(&self, cx: &mut Cx, name: &str) -> Got<Vec<ValueId>> {
        self.values(cx, name)?.into_iter().map(|v| self.real(v, name)).collect()
    }

    /// A list of real tensors with gaps.
    pub fn opt_tensors(&self, cx: &mut Cx, name: &str) -> Got<Vec<Option<ValueId>>> {
        let pick = |v| if matches!(v, Val::None) { Ok(None) } else { self.real(v, name).map(Some) };
        self.values(cx, name)?.into_iter().map(pick).collect()
    }

    /// A size, literal or symbolic.
    pub fn dim(&self, name: &str) -> Got<Dim> {
        match self.number(name)? {
            Some(Val::Int(d)) => Ok(d),
            Some(Val::Bool(b)) => Ok(Dim::from(i64::from(b))),
            _ => self.wrong(name, "an integer"),
        }
    }

    /// A size, if one is given.
    pub fn opt_dim(&self, name: &str) -> Got<Option<Dim>> {
        match self.number(name)? {
            Some(Val::None) => Ok(None),
            _ => self.dim(name).map(Some),
        }
    }

    /// Sizes, literal or symbolic. One integer counts as a list of one.
    pub fn dims(&self, name: &str) -> Got<Vec<Dim>> {
        match self.number(name)? {
            Some(Val::Int(d)) => Ok(vec![d]),
            Some(Val::List(items)) => items
                .into_iter()
                .map(|v| match v {
                    Val::Int(d) => Ok(d),
                    _ => self.wrong(name, "a list of integers"),
                })
                .collect(),
            _ => self.wrong(name, "a list of integers"),
        }
    }

    /// Sizes, if a list is given.
    pub fn opt_dims(&self, name: &str) -> Got<Option<Vec<Dim>>> {
        match self.number(name)? {
            Some(Val::None) => Ok(None),
            _ => self.dims(name).map(Some),
        }
    }

    /// An integer that must be literal.
    pub fn int(&self, name: &str) -> Got<i64> {
        self.literal_int(name, &self.dim(name)?)
    }

    /// A literal integer of 32 bits, at least `least`.
    pub fn int32(&self, name: &str, least: i64) -> Got<i64> {
        let v = self.int(name)?;
        if (least..=i64::from(i32::MAX)).contains(&v) {
            return Ok(v);
        }
        Err(bad_argument(format!("{}: `{name}` is {v}, not {least} or more in 32 bits", self.target)))
    }

    /// A literal integer, if one is given.
    pub fn opt_int(&self, name: &str) -> Got<Option<i64>> {
        self.opt_dim(name)?.map(|d| self.literal_int(name, &d)).transpose()
    }

    fn literal_int(&self, name: &str, d: &Dim) -> Got<i64> {
        d.as_const().ok_or_else(|| {
            unsupported_shape(format!("{}: `{name}` is the symbolic size {d}, a literal is needed", self.target))
        })
    }

    /// Literal integers.
    pub fn ints(&self, name: &str) -> Got<Vec<i64>> {
        self.dims(name)?.iter().map(|d| self.literal_int(name, d)).collect()
    }

    /// Literal integers, if a list is given.
    pub fn opt_ints(&self, name: &str) -> Got<Option<Vec<i64>>> {
        match self.opt_dims(name)? {
            None => Ok(None),
            Some(_) => self.ints(name).map(Some),
        }
    }

    /// Literal integers of 32 bits, one per dimension: a single one counts for all.
    pub fn ints_n(&self, name: &str, n: usize) -> Got<Vec<i64>> {
        let list = self.ints(name)?;
        if let Some(v) = list.iter().find(|&&v| i32::try_from(v).is_err()) {
            return Err(bad_argument(format!("{}: `{name}` is {v}, beyond 32 bits", self.target)));
        }
        match list.len() {
            1 => Ok(vec![list[0]; n]),
            len if len == n => Ok(list),
            len => Err(bad_argument(format!("{}: `{name}` has {len} values for {n} dimensions", self.target))),
        }
    }

    /// A float; an integer or bool is converted.
    pub fn float(&self, name: &str) -> Got<f64> {
        match self.number(name)? {
            Some(v) => match self.parts.of_number(name, v) {
                Val::Float(v) => Ok(v),
                Val::Bool(b) => Ok(f64::from(u8::from(b))),
                Val::Int(d) => self.literal_int(name, &d).map(|v| v as f64),
                Val::ComplexScalar(..) => {
                    let text = format!("{} with the complex number `{name}` is not supported", self.target);
                    Err(Diagnostic::new(Code::UnsupportedDType, text))
                }
                _ => self.wrong(name, "a number"),
            },
            None => self.wrong(name, "a number"),
        }
    }

    /// A float, if one is given.
    pub fn opt_float(&self, name: &str) -> Got<Option<f64>> {
        match self.number(name)? {
            Some(Val::None) => Ok(None),
            _ => self.float(name).map(Some),
        }
    }

    /// Floats, if a list is given.
    pub fn opt_floats(&self, name: &str) -> Got<Option<Vec<f64>>> {
        match self.number(name)? {
            Some(Val::None) => Ok(None),
            Some(Val::List(items)) => items
                .into_iter()
                .map(|v| match v {
                    Val::Float(v) => Ok(v),
                    Val::Int(d) => self.literal_int(name, &d).map(|v| v as f64),
                    _ => self.wrong(name, "a list of numbers"),
                })
                .collect::<Got<Vec<f64>>>()
                .map(Some),
            _ => self.wrong(name, "a list of numbers"),
        }
    }

    /// A truth value.
    pub fn bool(&self, name: &str) -> Got<bool> {
        match self.number(name)? {
            Some(Val::Bool(b)) => Ok(b),
            Some(Val::Int(d)) if d.as_const().is_some() => Ok(!d.is(0)),
            _ => self.wrong(name, "a bool"),
        }
    }

    /// A truth value, if one is given.
    pub fn opt_bool(&self, name: &str) -> Got<Option<bool>> {
        match self.number(name)? {
            Some(Val::None) => Ok(None),
            _ => self.bool(name).map(Some),
        }
    }

    /// A Python number with its kind: `Int`, `Float`, `Bool`, `Ratio` or `ComplexScalar`.
    pub fn scalar(&self, name: &str) -> Got<Val> {
        match self.number(name)? {
            Some(v) if !matches!(v, Val::None | Val::List(_)) => Ok(self.parts.of_number(name, v)),
            _ => self.wrong(name, "a number"),
        }
    }

    /// A number, if one is given (else `Val::None`).
    pub fn opt_scalar(&self, name: &str) -> Got<Val> {
        match self.number(name)? {
            Some(v) if !matches!(v, Val::List(_)) => Ok(v),
            _ => self.wrong(name, "a number"),
        }
    }

    /// A text.
    pub fn str(&self, name: &str) -> Got<String> {
        match self.arg(name)? {
            Arg::Str(s) => Ok(s.clone()),
            _ => self.wrong(name, "a string"),
        }
    }

    /// A text, if one is given.
    pub fn opt_str(&self, name: &str) -> Got<Option<String>> {
        match self.arg(name)? {
            Arg::None => Ok(None),
            _ => self.str(name).map(Some),
        }
    }

    /// An element type, if one is given.
    pub fn dtype(&self, name: &str) -> Got<Option<ScalarType>> {
        match self.arg(name)? {
            Arg::None => Ok(None),
            Arg::ScalarType(t) => Ok(Some(*t)),
            _ => self.wrong(name, "an element type"),
        }
    }

    /// A memory format by its code in the export (1 contiguous, 2 channels last, 3 channels last in 3-D, 4 preserve).
    pub fn memory_format(&self) -> Got<Option<i64>> {
        match self.arg("memory_format")? {
            Arg::None => Ok(None),
            Arg::MemoryFormat(code) => Ok(Some(*code)),
            _ => self.wrong("memory_format", "a memory format"),
        }
    }

    /// A dimension of a tensor of this rank; negative ones count from the end. A rank of 0 counts as 1, as PyTorch has it.
    pub fn dim_index(&self, name: &str, rank: usize) -> Got<usize> {
        wrap_dim(self.int(name)?, rank)
    }

    /// Dimensions of a tensor of this rank, in the given order, none twice.
    pub fn dim_indices(&self, name: &str, rank: usize) -> Got<Vec<usize>> {
        let dims = self.ints(name)?.iter().map(|&d| wrap_dim(d, rank)).collect::<Got<Vec<usize>>>()?;
        let mut sorted = dims.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != dims.len() {
            return Err(bad_argument(format!("{}: a dimension appears twice in `{name}`={dims:?}", self.target)));
        }
        Ok(dims)
    }

    /// Refuses an argument whose value is not the only one that the rule covers, by a code of `limits.rs`.
    pub fn require(&self, limit: &'static str, name: &str, holds: bool, supported: &str) -> Got<()> {
        if holds {
            return Ok(());
        }
        let got = self.given(name).map_or("its default".to_string(), |a| format!("{a:?}"));
        Err(unsupported_attribute(
            limit,
            format!("{}: `{name}`={got} is not supported (only {supported})", self.target),
        ))
    }
}

/// A dimension number, negative ones from the end; a 0-d tensor counts as 1-d.
pub fn wrap_dim(dim: i64, rank: usize) -> Got<usize> {
    let n = (rank as i64).max(1);
    let wrapped = if dim < 0 { dim + n } else { dim };
    if (0..n).contains(&wrapped) {
        Ok(wrapped as usize)
    } else {
        Err(bad_argument(format!("dimension {dim} of a tensor of {rank} dimensions")))
    }
}

/// A literal number, list of numbers or `None`; tensors and texts give no value.
fn literal(arg: &Arg) -> Option<Val> {
    let list = |v: Vec<Val>| Some(Val::List(v));
    match arg {
        Arg::None => Some(Val::None),
        Arg::Int(v) => Some(Val::Int(Dim::from(*v))),
        Arg::Float(v) => Some(Val::Float(*v)),
        Arg::Bool(v) => Some(Val::Bool(*v)),
        Arg::Complex(re, im) => Some(Val::ComplexScalar(*re, *im)),
        Arg::Ints(v) => list(v.iter().map(|&v| Val::Int(Dim::from(v))).collect()),
        Arg::Floats(v) => list(v.iter().map(|&v| Val::Float(v)).collect()),
        Arg::Bools(v) => list(v.iter().map(|&v| Val::Bool(v)).collect()),
        _ => None,
    }
}

/// As [`literal`], with the names of symbolic values looked up.
fn resolve(cx: &mut Cx, arg: &Arg) -> Got<Option<Val>> {
    fn one<T: Copy>(cx: &mut Cx, a: &SymArg<T>, lit: impl Fn(T) -> Val) -> Got<Val> {
        match a {
            SymArg::Value(v) => Ok(lit(*v)),
            SymArg::Name(n) => cx.read(n),
        }
    }
    let int = |v: i64| Val::Int(Dim::from(v));
    Ok(match arg {
        Arg::SymInt(a) => Some(one(cx, a, int)?),
        Arg::SymFloat(a) => Some(one(cx, a, Val::Float)?),
        Arg::SymBool(a) => Some(one(cx, a, Val::Bool)?),
        Arg::SymInts(list) => Some(Val::List(list.iter().map(|a| one(cx, a, int)).collect::<Got<_>>()?)),
        Arg::SymFloats(list) => Some(Val::List(list.iter().map(|a| one(cx, a, Val::Float)).collect::<Got<_>>()?)),
        Arg::SymBools(list) => Some(Val::List(list.iter().map(|a| one(cx, a, Val::Bool)).collect::<Got<_>>()?)),
        other => literal(other),
    })
}
