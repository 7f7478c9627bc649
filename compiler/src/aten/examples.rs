//! One call of each operator, with the element types that PyTorch takes there and what it gives: the `dtypes` column of `jvc ops`, and the
//! programs by which tests prove that whatever is listed compiles on every bundled device.
//!
//! `examples.txt` has a line for each operator: `NAME ARG=VALUE… | TYPES RESULT… | TYPES RESULT…`. `T` stands for each of the types in
//! turn. A value is a tensor (`T[2,3]`, `i64[4]`), a list of tensors with gaps (`(null,i64[2])`), an element type (`@T`), a complex number
//! (`1.0+2.0j`), or JSON. A result is a tensor, a list, `int`, `none`; a size `u0` is one that the data decide. What a rule refuses of the
//! types that PyTorch takes is behind `!`: `| !c64`. `models/operators/check_examples.py` holds the lines to PyTorch.

use crate::import::Program;
use crate::import::program::{
    Arg, InputSpec, NamedArg, Node, OutputSpec, ProgramGraph, ScalarType, SymArg, TensorMeta,
};
use crate::import::weights::WeightStore;
use crate::ir::{Dim, Range};
use std::sync::OnceLock;

const TEXT: &str = include_str!("examples.txt");

/// Upper bound of sizes that the data decide.
const MOST: i64 = 64;

/// An operator's line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// `aten.add.Tensor`.
    pub name: &'static str,
    args: Vec<(&'static str, &'static str)>,
    rows: Vec<Row>,
    refused: Vec<ScalarType>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    /// What `T` stands for; empty for a call without `T`.
    types: Vec<ScalarType>,
    results: Vec<&'static str>,
}

/// All examples, sorted by name.
pub fn all() -> &'static [Example] {
    static ALL: OnceLock<Vec<Example>> = OnceLock::new();
    ALL.get_or_init(|| TEXT.lines().map(|line| parse(line).unwrap_or_else(|| panic!("{line}"))).collect())
}

/// The example of an operator.
pub fn find(name: &str) -> Option<&'static Example> {
    all().binary_search_by(|e| e.name.cmp(name)).ok().map(|at| &all()[at])
}

/// An example from its line.
pub fn parse(line: &'static str) -> Option<Example> {
    let mut parts = line.split(" | ");
    let mut words = parts.next()?.split(' ');
    let name = words.next()?;
    let args = words.map(|w| w.split_once('=')).collect::<Option<Vec<_>>>()?;
    let (mut rows, mut refused) = (vec![], vec![]);
    for part in parts {
        let mut words = part.split(' ');
        let types = words.next()?;
        if let Some(types) = types.strip_prefix('!') {
            refused.extend(scalar_types(types)?);
            continue;
        }
        let types = if types == "-" { vec![] } else { scalar_types(types)? };
        rows.push(Row { types, results: words.collect() });
    }
    Some(Example { name, args, rows, refused })
}

fn scalar_types(list: &str) -> Option<Vec<ScalarType>> {
    list.split(',').map(scalar_type).collect()
}

fn scalar_type(name: &str) -> Option<ScalarType> {
    (1..=32).filter_map(ScalarType::from_code).find(|t| t.to_string() == name)
}

impl Example {
    /// The element types that the operator takes; none for calls without tensors and types.
    pub fn types(&self) -> Vec<ScalarType> {
        let mut types: Vec<ScalarType> = self.rows.iter().flat_map(|r| r.types.iter().copied()).collect();
        types.sort_unstable_by_key(order);
        types
    }

    /// Types that PyTorch takes and the rule refuses.
    pub fn refused(&self) -> &[ScalarType] {
        &self.refused
    }

    /// A program of this call alone; `None` for a type that is not listed.
    ///
    /// # Panics
    /// When the line is malformed, which tests exclude.
    pub fn program(&self, of: Option<ScalarType>) -> Option<Program> {
        let row = self.rows.iter().find(|r| of.map_or(r.types.is_empty(), |t| r.types.contains(&t)))?;
        let mut maker = Maker { of, program: empty(self.name) };
        maker.fill(self, row);
        Some(maker.program)
    }

    /// The programs of every listed type.
    pub fn programs(&self) -> Vec<(Option<ScalarType>, Program)> {
        let types = self.types().into_iter().map(Some);
        let all: Vec<Option<ScalarType>> = if self.types().is_empty() { vec![None] } else { types.collect() };
        all.into_iter().filter_map(|t| Some((t, self.program(t)?))).collect()
    }
}

/// Position of a type in lists for people: floats, integers, bool, complex.
fn order(t: &ScalarType) -> usize {
    use ScalarType::*;
    const ORDER: [ScalarType; 11] = [F32, F16, BF16, F64, I64, I32, I16, I8, U8, Bool, C64];
    ORDER.iter().position(|o| o == t).unwrap_or(ORDER.len())
}

fn empty(name: &str) -> Program {
    Program {
        name: name.to_string(),
        graph: ProgramGraph::default(),
        inputs: vec![],
        outputs: vec![],
        input_names: vec![],
        output_names: vec![],
        ranges: [("u0".to_string(), Range { min: 0, max: MOST })].into(),
        functional: false,
        torch_version: String::new(),
        weights: WeightStore::new(),
        warnings: vec![],
    }
}

struct Maker {
    of: Option<ScalarType>,
    program: Program,
}

impl Maker {
    fn fill(&mut self, example: &Example, row: &Row) {
        let inputs = example.args.iter().map(|&(name, text)| NamedArg {
            name: name.to_string(),
            arg: self.argument(text).unwrap_or_else(|| panic!("{}: {name}={text}", example.name)),
        });
        let inputs: Vec<NamedArg> = inputs.collect();
        let outputs: Vec<Arg> = (row.results.iter().enumerate())
            .map(|(i, text)| self.result(i, text).unwrap_or_else(|| panic!("{}: result {text}", example.name)))
            .collect();
        let node = Node {
            name: "call".to_string(),
            target: example.name.to_string(),
            inputs,
            outputs,
            module: String::new(),
            line: String::new(),
        };
        self.program.graph.nodes.push(node);
    }

    fn argument(&mut self, text: &str) -> Option<Arg> {
        if let Some(t) = text.strip_prefix('@') {
            return Some(Arg::ScalarType(self.element(t)?));
        }
        if let Some(list) = text.strip_prefix('(').and_then(|t| t.strip_suffix(')')) {
            let names: Vec<Option<String>> =
                pieces(list).into_iter().map(|t| if t == "null" { None } else { self.input(t) }).collect();
            return Some(match names.iter().cloned().collect::<Option<Vec<String>>>() {
                Some(names) => Arg::Tensors(names),
                None => Arg::OptionalTensors(names),
            });
        }
        if is_tensor(text) {
            return self.input(text).map(Arg::Tensor);
        }
        if let Some(text) = text.strip_suffix('j') {
            let (re, im) = text.split_once('+')?;
            return Some(Arg::Complex(re.parse().ok()?, im.parse().ok()?));
        }
        match text {
            "inf" | "-inf" | "nan" => text.parse().ok().map(Arg::Float),
            _ => literal(&serde_json::from_str(text).ok()?),
        }
    }

    fn element(&self, text: &str) -> Option<ScalarType> {
        if text == "T" { self.of } else { scalar_type(text) }
    }

    /// A tensor of the given type becomes an input of the program.
    fn input(&mut self, text: &str) -> Option<String> {
        let meta = self.meta(text)?;
        let name = format!("x{}", self.program.inputs.len());
        self.program.graph.tensors.insert(name.clone(), meta);
        self.program.graph.inputs.push(Arg::Tensor(name.clone()));
        self.program.inputs.push(InputSpec::User(Arg::Tensor(name.clone())));
        self.program.input_names.push(name.clone());
        Some(name)
    }

    fn meta(&self, text: &str) -> Option<TensorMeta> {
        let (dtype, sizes) = text.strip_suffix(']')?.split_once('[')?;
        let sizes: Vec<Dim> = sizes.split(',').filter(|s| !s.is_empty()).map(size).collect::<Option<_>>()?;
        let mut strides: Vec<Dim> = vec![];
        for d in 0..sizes.len() {
            strides.push(sizes[d + 1..].iter().fold(Dim::from(1), |p, s| &p * s));
        }
        Some(TensorMeta { dtype: self.element(dtype)?, sizes, strides, storage_offset: Dim::from(0) })
    }

    fn result(&mut self, i: usize, text: &str) -> Option<Arg> {
        let name = format!("y{i}");
        if let Some(list) = text.strip_prefix('(').and_then(|t| t.strip_suffix(')')) {
            let mut names = vec![];
            for (k, t) in pieces(list).into_iter().enumerate() {
                names.push(self.tensor_result(format!("{name}_{k}"), t)?);
            }
            return Some(Arg::Tensors(names));
        }
        let number = Arg::SymInt(SymArg::Name(name.clone()));
        match text {
            "none" => return Some(Arg::None),
            "int" => {}
            "u0" => {
                self.program.graph.sym_ints.insert(name.clone(), Dim::symbol("u0"));
            }
            _ => return self.tensor_result(name, text).map(Arg::Tensor),
        }
        self.output(name, number.clone());
        Some(number)
    }

    fn tensor_result(&mut self, name: String, text: &str) -> Option<String> {
        let meta = self.meta(text)?;
        self.program.graph.tensors.insert(name.clone(), meta);
        self.output(name.clone(), Arg::Tensor(name.clone()));
        Some(name)
    }

    fn output(&mut self, name: String, arg: Arg) {
        self.program.graph.outputs.push(arg.clone());
        self.program.outputs.push(OutputSpec::User(arg));
        self.program.output_names.push(name);
    }
}

fn size(text: &str) -> Option<Dim> {
    text.parse::<i64>().map_or_else(|_| text.starts_with('u').then(|| Dim::symbol(text)), |n| Some(Dim::from(n)))
}

fn is_tensor(text: &str) -> bool {
    text.ends_with(']') && text.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// `T[2,3],null` → `T[2,3]`, `null`.
fn pieces(list: &str) -> Vec<&str> {
    let (mut out, mut depth, mut from) = (vec![], 0, 0);
    for (at, c) in list.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                out.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    out.push(&list[from..]);
    out.retain(|t| !t.is_empty());
    out
}

fn literal(value: &serde_json::Value) -> Option<Arg> {
    use serde_json::Value;
    Some(match value {
        Value::Null => Arg::None,
        Value::Bool(v) => Arg::Bool(*v),
        Value::Number(n) => n.as_i64().map_or(Arg::Float(n.as_f64()?), Arg::Int),
        Value::String(s) => Arg::Str(s.clone()),
        Value::Array(items) if items.iter().all(Value::is_i64) => {
            Arg::Ints(items.iter().filter_map(Value::as_i64).collect())
        }
        Value::Array(items) if items.iter().all(Value::is_boolean) => {
            Arg::Bools(items.iter().filter_map(Value::as_bool).collect())
        }
        Value::Array(items) => Arg::Floats(items.iter().map(Value::as_f64).collect::<Option<_>>()?),
        Value::Object(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_parses_and_lines_are_sorted() {
        assert!(all().is_sorted_by(|a, b| a.name < b.name), "sorted, each operator once");
        for example in all() {
            assert!(!example.programs().is_empty(), "{} has no program", example.name);
        }
    }

    #[test]
    fn a_program_has_the_call_with_its_operands_and_results() {
        let line = "aten.index.Tensor self=T[3,4] indices=(null,i64[2]) | f32,c64 T[3,2] | !bool";
        let example = parse(line).expect("a line");
        assert_eq!(example.types(), [ScalarType::F32, ScalarType::C64]);
        assert_eq!(example.refused(), [ScalarType::Bool]);
        let program = example.program(Some(ScalarType::C64)).expect("listed");
        let node = &program.graph.nodes[0];
        assert_eq!(node.inputs[1].arg, Arg::OptionalTensors(vec![None, Some("x1".to_string())]));
        assert_eq!(program.graph.tensors["y0"].dtype, ScalarType::C64);
        assert_eq!(program.graph.tensors["y0"].strides, [Dim::from(2), Dim::from(1)]);
        assert!(example.program(Some(ScalarType::F64)).is_none(), "not listed");
    }
}
