//! Operator schemas: argument names, types and defaults, since an export leaves out arguments that have their default value.
//!
//! `schemas.txt` holds one operator a line: `NAME [view] ARG[!]:TYPE[=DEFAULT]…`, where `!` marks an argument that the operator writes,
//! `view` one whose result may share memory with its first tensor, and a default is JSON without spaces.

use crate::import::program::{Arg, ScalarType};
use std::collections::BTreeMap;
use std::sync::OnceLock;

const TEXT: &str = include_str!("schemas.txt");

/// An argument of an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct SchemaArg {
    /// Name.
    pub name: &'static str,
    /// Type in the schema language (`List[int]`, `Optional[Tensor]`, `number`).
    pub ty: &'static str,
    /// The operator writes it.
    pub mutated: bool,
    /// Value when absent; `None` for required arguments.
    pub default: Option<Arg>,
}

/// An operator overload.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    /// `aten.add.Tensor`.
    pub name: &'static str,
    /// The result may share memory with the first tensor argument.
    pub view: bool,
    /// Arguments in order.
    pub args: Vec<SchemaArg>,
}

impl Schema {
    /// The schema of an overload, if PyTorch has it.
    pub fn find(name: &str) -> Option<&'static Schema> {
        all().get(name)
    }

    /// An argument by name.
    pub fn arg(&self, name: &str) -> Option<&SchemaArg> {
        self.args.iter().find(|a| a.name == name)
    }

    /// The first argument that the operator writes.
    pub fn mutated(&self) -> Option<&SchemaArg> {
        self.args.iter().find(|a| a.mutated)
    }
}

fn all() -> &'static BTreeMap<&'static str, Schema> {
    static ALL: OnceLock<BTreeMap<&'static str, Schema>> = OnceLock::new();
    ALL.get_or_init(|| TEXT.lines().filter_map(parse_line).map(|s| (s.name, s)).collect())
}

fn parse_line(line: &'static str) -> Option<Schema> {
    let mut words = line.split(' ').peekable();
    let name = words.next()?;
    let view = words.next_if_eq(&"view").is_some();
    Some(Schema { name, view, args: words.filter_map(parse_arg).collect() })
}

fn parse_arg(word: &'static str) -> Option<SchemaArg> {
    let (name, rest) = word.split_once(':')?;
    let (ty, default) = match rest.split_once('=') {
        Some((ty, json)) => (ty, Some(parse_default(name, json)?)),
        None => (rest, None),
    };
    let mutated = name.ends_with('!');
    Some(SchemaArg { name: name.trim_end_matches('!'), ty, mutated, default })
}

fn parse_default(name: &str, json: &str) -> Option<Arg> {
    use serde_json::Value;
    Some(match serde_json::from_str(json).ok()? {
        Value::Null => Arg::None,
        Value::Bool(v) => Arg::Bool(v),
        // The schema dump has element types in the numbering of c10, which is one below the export's up to bool.
        Value::Number(n) if name.ends_with("dtype") => Arg::ScalarType(ScalarType::from_code(n.as_i64()? + 1)?),
        Value::Number(n) => n.as_i64().map_or(Arg::Float(n.as_f64()?), Arg::Int),
        Value::String(s) => Arg::Str(s),
        Value::Array(items) if items.iter().all(Value::is_i64) => {
            Arg::Ints(items.iter().filter_map(Value::as_i64).collect())
        }
        Value::Array(items) if items.iter().all(Value::is_boolean) => {
            Arg::Bools(items.iter().filter_map(Value::as_bool).collect())
        }
        Value::Array(items) => Arg::Floats(items.iter().filter_map(Value::as_f64).collect()),
        Value::Object(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_parses_completely() {
        for line in TEXT.lines() {
            let schema = parse_line(line).expect("a line has a name");
            let words = line.split(' ').filter(|w| w.contains(':')).count();
            assert_eq!(schema.args.len(), words, "{line}");
        }
    }

    #[test]
    fn defaults_flags_and_writes_are_read() {
        let conv = Schema::find("aten.conv2d.default").expect("known");
        assert_eq!(conv.arg("stride").and_then(|a| a.default.clone()), Some(Arg::Ints(vec![1, 1])));
        assert_eq!(conv.arg("weight").and_then(|a| a.default.clone()), None);
        let add = Schema::find("aten.add_.Tensor").expect("known");
        assert_eq!(add.mutated().map(|a| a.name), Some("self"));
        assert!(Schema::find("aten.view.default").expect("known").view);
        let tril = Schema::find("aten.tril_indices.default").expect("known");
        assert_eq!(tril.arg("dtype").and_then(|a| a.default.clone()), Some(Arg::ScalarType(ScalarType::I64)));
    }
}
