//! The graph part of the JSON → [`ProgramGraph`], sub-graphs included, with every name checked against its definition.

use super::error::ImportError;
use super::expr::parse_dim;
use super::json::Json;
use super::limits::Limits;
use super::program::{Arg, NamedArg, Node, ProgramGraph, ScalarType, SubGraph, SymArg, TensorMeta};
use crate::ir::Dim;
use std::collections::{BTreeMap, BTreeSet};

/// State of reading one program: counters against the limits, things to warn about, and the size expressions seen.
pub(super) struct Reader<'l> {
    pub(super) limits: &'l Limits,
    pub(super) warnings: BTreeSet<String>,
    /// Symbols that the file calls positive.
    pub(super) positive: BTreeSet<String>,
    /// Symbols that are part of a tensor's size.
    pub(super) sizes: BTreeSet<String>,
    n_nodes: u64,
    n_values: u64,
    dims: BTreeMap<String, Dim>,
}

type Read<T> = Result<T, ImportError>;

const NODE_KEYS: [&str; 6] = ["target", "inputs", "outputs", "metadata", "is_hop_single_tensor_return", "name"];
const META_KEYS: [&str; 7] = ["dtype", "sizes", "requires_grad", "device", "strides", "storage_offset", "layout"];
const GRAPH_KEYS: [&str; 9] = [
    "inputs",
    "outputs",
    "nodes",
    "tensor_values",
    "sym_int_values",
    "sym_bool_values",
    "sym_float_values",
    "custom_obj_values",
    "is_single_tensor_return",
];

impl<'l> Reader<'l> {
    pub(super) fn new(limits: &'l Limits) -> Reader<'l> {
        Reader {
            limits,
            warnings: BTreeSet::new(),
            positive: BTreeSet::new(),
            sizes: BTreeSet::new(),
            n_nodes: 0,
            n_values: 0,
            dims: BTreeMap::new(),
        }
    }

    /// Warns of fields that this version does not know: the file is newer, and may mean more than what is read.
    pub(super) fn know(&mut self, json: &Json<'_>, what: &str, keys: &[&str]) {
        if let Json::Map(fields) = json {
            for (key, _) in fields.iter().filter(|(k, _)| !keys.contains(&k.as_ref())) {
                let key: String = key.chars().take(60).collect();
                self.warnings.insert(format!("unknown field `{key}` of {what} is ignored"));
            }
        }
    }

    /// Reads a graph; `at` says which.
    pub(super) fn graph(&mut self, json: &Json<'_>, at: &str) -> Read<ProgramGraph> {
        self.know(json, "graph", &GRAPH_KEYS);
        let mut graph = ProgramGraph {
            tensors: self.tensors(json.need("tensor_values", at)?, at)?,
            sym_ints: self.sym_ints(json.get("sym_int_values"), at)?,
            is_single_tensor_return: matches!(json.get("is_single_tensor_return"), Some(Json::Bool(true))),
            ..ProgramGraph::default()
        };
        let mut scope = Scope::default();
        for arg in json.need("inputs", at)?.list(at)? {
            let arg = self.arg(arg, at)?;
            scope.define(&arg, &graph.tensors)?;
            graph.inputs.push(arg);
        }
        let nodes = json.need("nodes", at)?.list(at)?;
        self.n_nodes += nodes.len() as u64;
        ImportError::limit("nodes", self.n_nodes, self.limits.nodes)?;
        for (i, node) in nodes.iter().enumerate() {
            let node = self.node(node, i, &mut scope)?;
            for input in &node.inputs {
                scope.check(&input.arg, &node.name)?;
            }
            for output in &node.outputs {
                scope.define(output, &graph.tensors)?;
            }
            graph.nodes.push(node);
        }
        for arg in json.need("outputs", at)?.list(at)? {
            let arg = self.arg(arg, at)?;
            scope.check(&arg, "the list of outputs")?;
            graph.outputs.push(arg);
        }
        Ok(graph)
    }

    fn tensors(&mut self, json: &Json<'_>, at: &str) -> Read<BTreeMap<String, TensorMeta>> {
        let entries = json.map(at)?;
        self.n_values += entries.len() as u64;
        ImportError::limit("tensors", self.n_values, self.limits.values)?;
        let mut out = BTreeMap::new();
        for (name, meta) in entries {
            let name = self.name(name)?;
            let meta = self.meta(meta, &name)?;
            out.insert(name, meta);
        }
        Ok(out)
    }

    fn sym_ints(&mut self, json: Option<&Json<'_>>, at: &str) -> Read<BTreeMap<String, Dim>> {
        let mut out = BTreeMap::new();
        let Some(json) = json else { return Ok(out) };
        for (name, value) in json.map(at)? {
            let name = self.name(name)?;
            let dim = self.dim(value, &name)?;
            out.insert(name, dim);
        }
        Ok(out)
    }

    fn node(&mut self, json: &Json<'_>, index: usize, scope: &mut Scope) -> Read<Node> {
        let at = format!("node {index}");
        self.know(json, "node", &NODE_KEYS);
        let target = self.name(json.need("target", &at)?.str(&at)?)?;
        let target = target.strip_prefix("torch.ops.").map_or(target.clone(), str::to_string);
        let at = format!("node {index} ({target})");
        let mut inputs = vec![];
        for input in json.need("inputs", &at)?.list(&at)? {
            self.know(input, "argument", &["name", "arg", "kind"]);
            let name = self.name(input.need("name", &at)?.str(&at)?)?;
            inputs.push(NamedArg { name, arg: self.arg(input.need("arg", &at)?, &at)? });
        }
        let outputs = self.args(json.need("outputs", &at)?, &at)?;
        let name = match json.get("name") {
            Some(Json::Str(name)) => self.name(name)?,
            _ => outputs.iter().flat_map(defined_names).next().map_or_else(|| format!("_{index}"), str::to_string),
        };
        let metadata = json.get("metadata");
        let text = |key: &str| metadata.and_then(|m| m.get(key)).and_then(|v| v.str("").ok()).unwrap_or("");
        Ok(Node {
            name: scope.node_name(name, index)?,
            target,
            inputs,
            outputs,
            module: module_path(text("nn_module_stack")),
            line: user_line(text("stack_trace")),
        })
    }

    fn args(&mut self, json: &Json<'_>, at: &str) -> Read<Vec<Arg>> {
        let items = json.list(at)?;
        ImportError::limit("elements of a list", items.len() as u64, self.limits.list)?;
        items.iter().map(|a| self.arg(a, at)).collect()
    }

    /// Reads an argument.
    pub(super) fn arg(&mut self, json: &Json<'_>, at: &str) -> Read<Arg> {
        let (tag, v) = json.union(at)?;
        Ok(match tag {
            "as_none" => Arg::None,
            "as_tensor" => Arg::Tensor(self.named(v, at)?),
            "as_tensors" => Arg::Tensors(self.each(v, at, Reader::named)?),
            "as_optional_tensor" => match self.optional(v, at)? {
                Some(name) => Arg::Tensor(name),
                None => Arg::None,
            },
            "as_optional_tensors" => Arg::OptionalTensors(self.each(v, at, Reader::optional)?),
            "as_nested_tensors" => Arg::NestedTensors(self.each(v, at, |r, row, at| r.each(row, at, Reader::named))?),
            "as_int" => Arg::Int(v.int(at)?),
            "as_ints" => Arg::Ints(self.each(v, at, |_, v, at| v.int(at))?),
            "as_int_lists" => Arg::IntLists(self.each(v, at, |r, v, at| r.each(v, at, |_, v, at| v.int(at)))?),
            "as_float" => Arg::Float(v.float(at)?),
            "as_floats" => Arg::Floats(self.each(v, at, |_, v, at| v.float(at))?),
            "as_bool" => Arg::Bool(v.bool(at)?),
            "as_bools" => Arg::Bools(self.each(v, at, |_, v, at| v.bool(at))?),
            "as_complex" => Arg::Complex(v.need("real", at)?.float(at)?, v.need("imag", at)?.float(at)?),
            "as_string" => Arg::Str(v.str(at)?.to_string()),
            "as_strings" => Arg::Strs(self.each(v, at, |_, v, at| Ok(v.str(at)?.to_string()))?),
            "as_sym_int" => Arg::SymInt(self.sym_int(v, at)?),
            "as_sym_ints" => Arg::SymInts(self.each(v, at, Reader::sym_int)?),
            "as_sym_float" => Arg::SymFloat(self.sym_float(v, at)?),
            "as_sym_floats" => Arg::SymFloats(self.each(v, at, Reader::sym_float)?),
            "as_sym_bool" => Arg::SymBool(self.sym_bool(v, at)?),
            "as_sym_bools" => Arg::SymBools(self.each(v, at, Reader::sym_bool)?),
            "as_scalar_type" => Arg::ScalarType(scalar_type(v, at)?),
            "as_memory_format" => Arg::MemoryFormat(v.int(at)?),
            "as_layout" => Arg::Layout(v.int(at)?),
            "as_device" => Arg::Device(device(v, at)?),
            "as_graph" => {
                let name = self.named(v, at)?;
                let graph = self.graph(v.need("graph", at)?, &format!("sub-graph {name}"))?;
                Arg::Graph(Box::new(SubGraph { name, graph }))
            }
            "as_operator" => Arg::Operator(v.str(at)?.to_string()),
            "as_string_to_argument" => {
                let entries = v.map(at)?.iter();
                Arg::StrMap(entries.map(|(k, v)| Ok((self.name(k)?, self.arg(v, at)?))).collect::<Read<_>>()?)
            }
            "as_custom_obj" => Arg::CustomObj(self.named(v, at)?),
            other => return Err(ImportError::format(at, format!("argument kind `{other}` is not known"))),
        })
    }

    fn each<T>(
        &mut self,
        json: &Json<'_>,
        at: &str,
        mut read: impl FnMut(&mut Self, &Json<'_>, &str) -> Read<T>,
    ) -> Read<Vec<T>> {
        let items = json.list(at)?;
        ImportError::limit("elements of a list", items.len() as u64, self.limits.list)?;
        items.iter().map(|v| read(self, v, at)).collect()
    }

    fn named(&mut self, json: &Json<'_>, at: &str) -> Read<String> {
        self.name(json.need("name", at)?.str(at)?)
    }

    fn optional(&mut self, json: &Json<'_>, at: &str) -> Read<Option<String>> {
        match json.union(at)? {
            ("as_none", _) => Ok(None),
            ("as_tensor", v) => Ok(Some(self.named(v, at)?)),
            (other, _) => Err(ImportError::format(at, format!("`{other}` in a list of optional tensors"))),
        }
    }

    fn sym_int(&mut self, json: &Json<'_>, at: &str) -> Read<SymArg<i64>> {
        self.sym(json, at, "as_int", |v| v.int(at))
    }

    fn sym_float(&mut self, json: &Json<'_>, at: &str) -> Read<SymArg<f64>> {
        self.sym(json, at, "as_float", |v| v.float(at))
    }

    fn sym_bool(&mut self, json: &Json<'_>, at: &str) -> Read<SymArg<bool>> {
        self.sym(json, at, "as_bool", |v| v.bool(at))
    }

    fn sym<T>(
        &mut self,
        json: &Json<'_>,
        at: &str,
        tag: &str,
        value: impl Fn(&Json<'_>) -> Read<T>,
    ) -> Read<SymArg<T>> {
        match json.union(at)? {
            ("as_name", name) => Ok(SymArg::Name(self.name(name.str(at)?)?)),
            (t, v) if t == tag => Ok(SymArg::Value(value(v)?)),
            (other, _) => Err(ImportError::format(at, format!("`{other}` is no symbolic scalar"))),
        }
    }

    pub(super) fn name(&self, name: &str) -> Read<String> {
        ImportError::limit("bytes of a name", name.len() as u64, self.limits.name_bytes)?;
        Ok(name.to_string())
    }

    /// Reads a tensor's type.
    pub(super) fn meta(&mut self, json: &Json<'_>, name: &str) -> Read<TensorMeta> {
        let at = &format!("type of `{name}`");
        self.know(json, "tensor type", &META_KEYS);
        let sizes = self.each(json.need("sizes", at)?, at, Reader::dim)?;
        let strides = self.each(json.need("strides", at)?, at, Reader::dim)?;
        ImportError::limit("dimensions of a tensor", sizes.len() as u64, self.limits.rank)?;
        if sizes.len() != strides.len() {
            return Err(ImportError::format(at, format!("{} sizes but {} strides", sizes.len(), strides.len())));
        }
        if let Some(layout) = json.get("layout")
            && layout.int(at)? != STRIDED
        {
            return Err(ImportError::format(at, format!("layout {} is not supported (only strided)", layout.int(at)?)));
        }
        check_sizes(&sizes, &strides, at, self.limits)?;
        self.sizes.extend(sizes.iter().flat_map(Dim::symbols));
        let storage_offset = self.dim(json.need("storage_offset", at)?, at)?;
        Ok(TensorMeta { dtype: scalar_type(json.need("dtype", at)?, at)?, sizes, strides, storage_offset })
    }

    /// Reads `{"as_int": 3}` or `{"as_expr": {"expr_str": …}}`.
    fn dim(&mut self, json: &Json<'_>, at: &str) -> Read<Dim> {
        match json.union(at)? {
            ("as_int", v) => Ok(Dim::from(v.int(at)?)),
            ("as_expr", v) => {
                let text = v.need("expr_str", at)?.str(at)?;
                self.expression(text)
            }
            (other, _) => Err(ImportError::format(at, format!("`{other}` is no size"))),
        }
    }

    /// An expression; one that no [`Dim`] can hold becomes a symbol of its own, with a warning.
    pub(super) fn expression(&mut self, text: &str) -> Read<Dim> {
        if let Some(dim) = self.dims.get(text) {
            return Ok(dim.clone());
        }
        let dim = match parse_dim(text, self.limits) {
            Ok(dim) => dim,
            Err(error @ ImportError::Expression { .. }) => {
                let symbol = format!("opaque{}", self.dims.len());
                self.warnings.insert(format!("{error}; it is the symbol {symbol}, which the caller has to choose"));
                Dim::symbol(&symbol)
            }
            Err(error) => return Err(error),
        };
        if text.contains("positive=True") {
            self.positive.extend(dim.symbols());
        }
        self.dims.insert(text.to_string(), dim.clone());
        Ok(dim)
    }

    /// Symbols of all expressions read.
    pub(super) fn symbols(&self) -> BTreeSet<String> {
        self.dims.values().flat_map(Dim::symbols).collect()
    }
}

/// The schema's number of the strided layout.
const STRIDED: i64 = 7;

fn check_sizes(sizes: &[Dim], strides: &[Dim], at: &str, limits: &Limits) -> Read<()> {
    let mut elems = 1u64;
    for size in sizes.iter().filter_map(Dim::as_const) {
        let Ok(size) = u64::try_from(size) else {
            return Err(ImportError::format(at, format!("size {size} is negative")));
        };
        ImportError::limit("elements of a tensor", size, limits.elems)?;
        elems = elems.saturating_mul(size.max(1));
    }
    ImportError::limit("elements of a tensor", elems, limits.elems)?;
    for stride in strides.iter().filter_map(Dim::as_const) {
        ImportError::limit("stride of a tensor", stride.unsigned_abs(), limits.elems)?;
    }
    Ok(())
}

/// Reads an element type.
pub(super) fn scalar_type(json: &Json<'_>, at: &str) -> Read<ScalarType> {
    let code = json.int(at)?;
    ScalarType::from_code(code).ok_or_else(|| ImportError::format(at, format!("element type {code} is not known")))
}

fn device(json: &Json<'_>, at: &str) -> Read<String> {
    let kind = json.need("type", at)?.str(at)?;
    Ok(match json.get("index") {
        Some(Json::Int(i)) => format!("{kind}:{i}"),
        _ => kind.to_string(),
    })
}

/// Names defined so far in one graph. Sub-graphs have scopes of their own: their operands are passed explicitly.
#[derive(Default)]
struct Scope {
    defined: BTreeSet<String>,
    nodes: BTreeSet<String>,
}

impl Scope {
    fn define(&mut self, arg: &Arg, tensors: &BTreeMap<String, TensorMeta>) -> Read<()> {
        if let Some(name) = tensor_names(arg).iter().find(|n| !tensors.contains_key(**n)) {
            return Err(ImportError::format(&format!("tensor `{name}`"), "has no type in `tensor_values`"));
        }
        for name in defined_names(arg) {
            if !self.defined.insert(name.to_string()) {
                return Err(ImportError::Duplicate { what: "value", name: name.to_string() });
            }
        }
        Ok(())
    }

    fn check(&self, arg: &Arg, at: &str) -> Read<()> {
        match used_names(arg).into_iter().find(|n| !self.defined.contains(*n)) {
            Some(name) => Err(ImportError::Undefined { name: name.to_string(), at: at.to_string() }),
            None => Ok(()),
        }
    }

    /// The node's name, made unique where the file (before torch 2.11) has none of its own.
    fn node_name(&mut self, name: String, index: usize) -> Read<String> {
        if self.nodes.insert(name.clone()) {
            return Ok(name);
        }
        let numbered = format!("{name}_{index}");
        match self.nodes.insert(numbered.clone()) {
            true => Ok(numbered),
            false => Err(ImportError::Duplicate { what: "node", name }),
        }
    }
}

fn tensor_names(arg: &Arg) -> Vec<&str> {
    match arg {
        Arg::Tensor(n) => vec![n],
        Arg::Tensors(v) => v.iter().map(String::as_str).collect(),
        Arg::OptionalTensors(v) => v.iter().flatten().map(String::as_str).collect(),
        Arg::NestedTensors(v) => v.iter().flatten().map(String::as_str).collect(),
        _ => vec![],
    }
}

fn sym_name<T>(arg: &SymArg<T>) -> Option<&str> {
    match arg {
        SymArg::Name(n) => Some(n),
        SymArg::Value(_) => None,
    }
}

/// Names that an output (or graph input) defines.
fn defined_names(arg: &Arg) -> Vec<&str> {
    match arg {
        Arg::CustomObj(n) => vec![n],
        other => used_names(other),
    }
}

/// Names of values that an argument refers to.
fn used_names(arg: &Arg) -> Vec<&str> {
    match arg {
        Arg::SymInt(a) => sym_name(a).into_iter().collect(),
        Arg::SymInts(v) => v.iter().filter_map(sym_name).collect(),
        Arg::SymFloat(a) => sym_name(a).into_iter().collect(),
        Arg::SymFloats(v) => v.iter().filter_map(sym_name).collect(),
        Arg::SymBool(a) => sym_name(a).into_iter().collect(),
        Arg::SymBools(v) => v.iter().filter_map(sym_name).collect(),
        Arg::StrMap(m) => m.values().flat_map(used_names).collect(),
        other => tensor_names(other),
    }
}

/// `L__self__cls,cls,torch.nn.Sequential;L__self__cls_1,cls.1,torch.nn.Conv2d` → `cls.1`. A module that is called again has `@1` added
/// to its path, which is dropped.
fn module_path(stack: &str) -> String {
    let path = stack.rsplit(';').next().and_then(|last| last.split(',').nth(1)).unwrap_or("");
    let path = path.strip_prefix("L['self']").map_or(path, |p| p.trim_start_matches('.'));
    let path = path.split('@').next().unwrap_or("");
    if path.starts_with("_empty_nn_module_stack") { String::new() } else { path.chars().take(MAX_SHOWN).collect() }
}

/// Innermost frame of a Python traceback that is not torch's own, as `file.py:12`. Absolute paths are cut to their last two parts.
fn user_line(trace: &str) -> String {
    let frames: Vec<(&str, &str)> = trace.lines().filter_map(frame).collect();
    let own = |f: &&(&str, &str)| !f.0.contains("site-packages/torch/") && !f.0.starts_with("torch/");
    match frames.iter().rev().find(own).or(frames.last()) {
        Some((file, line)) => format!("{}:{line}", short_path(file)),
        None => String::new(),
    }
}

/// Longest text that is taken over from free-form metadata.
const MAX_SHOWN: usize = 256;

fn frame(line: &str) -> Option<(&str, &str)> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once('"')?;
    let number = rest.strip_prefix(", line ")?;
    let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    Some((file, &number[..end]))
}

fn short_path(file: &str) -> String {
    let file = file.rsplit("site-packages/").next().unwrap_or(file);
    let parts: Vec<&str> = file.split(['/', '\\']).collect();
    let absolute = file.starts_with('/') || file.get(1..2) == Some(":");
    let from = if absolute { parts.len().saturating_sub(2) } else { 0 };
    parts[from..].join("/").chars().take(MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_paths_are_those_of_the_innermost_module() {
        assert_eq!(
            module_path("L__self__,,__main__.M;L__self__cls,cls,nn.Sequential;L__self__cls_1,cls.1@2,nn.Conv2d"),
            "cls.1"
        );
        assert_eq!(module_path("L__self__,,__main__.M"), "");
        assert_eq!(module_path("L__self__,L['self'].a.b,M"), "a.b");
        assert_eq!(module_path(""), "");
    }

    #[test]
    fn lines_are_those_of_the_innermost_frame_outside_torch() {
        let trace = "File \"/home/me/proj/net.py\", line 12, in forward\n    y = self.conv(x)\n  \
                     File \"site-packages/torch/nn/modules/conv.py\", line 3, in forward\n    return F.conv2d(x)";
        assert_eq!(user_line(trace), "proj/net.py:12");
        assert_eq!(user_line("File \"site-packages/timm/a/b.py\", line 9, in f"), "timm/a/b.py:9");
        assert_eq!(user_line("File \"torch/fx/passes/x.py\", line 24, in f"), "torch/fx/passes/x.py:24");
        assert_eq!(user_line("no frames"), "");
    }
}
