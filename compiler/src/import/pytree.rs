//! Names of inputs and outputs: the paths of the leaves in the pytrees that the caller of the model used (`x.b.0`).

use super::error::ImportError;
use super::json::{self, Json};
use super::limits::Limits;

/// A structure of leaves, as the module call graph records it.
struct Spec {
    kind: Option<String>,
    context: String,
    children: Vec<Spec>,
}

/// Leaf names of the inputs: `tuple(args, kwargs)`, arguments named by `forward`'s parameters where the file has them.
pub(super) fn input_names(spec: &str, parameters: &[&str], limits: &Limits) -> Result<Vec<String>, ImportError> {
    let root = parse(spec, "in_spec", limits)?;
    let mut out = vec![];
    let [args, kwargs] = root.children.as_slice() else {
        return Err(ImportError::format("in_spec", "is not a pair of positional and keyword arguments"));
    };
    for (i, child) in args.children.iter().enumerate() {
        let name = parameters.get(i).map_or_else(|| format!("arg{i}"), |p| p.to_string());
        leaves(child, &name, limits, &mut out)?;
    }
    for (key, child) in keys(kwargs, limits)?.iter().zip(&kwargs.children) {
        leaves(child, key, limits, &mut out)?;
    }
    Ok(out)
}

/// Leaf names of the outputs. What has no key of its own is called `output`.
pub(super) fn output_names(spec: &str, limits: &Limits) -> Result<Vec<String>, ImportError> {
    let root = parse(spec, "out_spec", limits)?;
    let mut out = vec![];
    leaves(&root, "", limits, &mut out)?;
    for name in &mut out {
        if name.is_empty() {
            *name = "output".into();
        } else if name.starts_with(|c: char| c.is_ascii_digit()) {
            *name = format!("output.{name}");
        }
    }
    Ok(out)
}

fn parse(text: &str, at: &str, limits: &Limits) -> Result<Spec, ImportError> {
    let text = json::prepare(text.as_bytes(), at, limits)?;
    let tree = json::parse(&text, at)?;
    match tree.list(at)? {
        [_version, spec] => read(spec, at),
        _ => Err(ImportError::format(at, "is not a pair of version and structure")),
    }
}

/// Recursion is bounded by the nesting limit of the JSON.
fn read(spec: &Json<'_>, at: &str) -> Result<Spec, ImportError> {
    let kind = match spec.need("type", at)? {
        Json::Null => None,
        other => Some(other.str(at)?.to_string()),
    };
    let context = match spec.get("context") {
        Some(Json::Str(s)) => s.to_string(),
        _ => String::new(),
    };
    let children = spec.need("children_spec", at)?.list(at)?.iter().map(|c| read(c, at)).collect::<Result<_, _>>()?;
    Ok(Spec { kind, context, children })
}

fn leaves(spec: &Spec, path: &str, limits: &Limits, out: &mut Vec<String>) -> Result<(), ImportError> {
    if spec.kind.is_none() {
        ImportError::limit("bytes of a name", path.len() as u64, limits.name_bytes)?;
        out.push(path.to_string());
        return Ok(());
    }
    for (key, child) in keys(spec, limits)?.iter().zip(&spec.children) {
        let inner = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        leaves(child, &inner, limits, out)?;
    }
    Ok(())
}

/// Keys of the children: a dict's keys, a dataclass's fields (its context is a list of lists), else positions.
fn keys(spec: &Spec, limits: &Limits) -> Result<Vec<String>, ImportError> {
    let n = spec.children.len();
    let named = match json::prepare(spec.context.as_bytes(), "pytree context", limits)
        .and_then(|t| json::parse(&t, "pytree context").map(|j| key_list(&j, n)))
    {
        Ok(keys) => keys,
        Err(limit @ ImportError::Limit { .. }) => return Err(limit),
        Err(_) => None, // contexts of other types are free text
    };
    Ok(named.unwrap_or_else(|| (0..n).map(|i| i.to_string()).collect()))
}

fn key_list(context: &Json<'_>, n: usize) -> Option<Vec<String>> {
    let Json::List(items) = context else { return None };
    let names: Option<Vec<String>> = items.iter().map(key_text).collect();
    match names {
        Some(names) if names.len() == n => Some(names),
        _ => items.iter().find_map(|inner| match inner {
            Json::List(_) => key_list(inner, n),
            _ => None,
        }),
    }
}

fn key_text(key: &Json<'_>) -> Option<String> {
    match key {
        Json::Str(s) => Some(s.to_string()),
        Json::Int(v) => Some(v.to_string()),
        Json::Bool(v) => Some(v.to_string()),
        Json::Null | Json::Float(_) | Json::List(_) | Json::Map(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::limits::LIMITS;

    const LEAF: &str = r#"{"type": null, "context": null, "children_spec": []}"#;

    fn node(kind: &str, context: &str, children: &[&str]) -> String {
        let context = serde_json::to_string(context).expect("text");
        format!(r#"{{"type": "{kind}", "context": {context}, "children_spec": [{}]}}"#, children.join(","))
    }

    #[test]
    fn leaves_are_named_by_parameter_key_and_position() {
        let inner = node("builtins.tuple", "null", &[LEAF]);
        let dict = node("builtins.dict", r#"["a", "b"]"#, &[LEAF, &inner]);
        let args = node("builtins.tuple", "null", &[&dict, LEAF]);
        let kwargs = node("builtins.dict", r#"["scale"]"#, &[LEAF]);
        let spec = format!("[1, {}]", node("builtins.tuple", "null", &[&args, &kwargs]));
        let names = input_names(&spec, &["x"], &LIMITS).expect("valid");
        assert_eq!(names, ["x.a", "x.b.0", "arg1", "scale"]);
    }

    #[test]
    fn outputs_without_keys_are_called_output() {
        assert_eq!(output_names(&format!("[1, {LEAF}]"), &LIMITS).expect("valid"), ["output"]);
        let pair = format!("[1, {}]", node("builtins.tuple", "null", &[LEAF, LEAF]));
        assert_eq!(output_names(&pair, &LIMITS).expect("valid"), ["output.0", "output.1"]);
        let class = format!("[1, {}]", node("my.Class", r#"[["mean", "scale"], []]"#, &[LEAF, LEAF]));
        assert_eq!(output_names(&class, &LIMITS).expect("valid"), ["mean", "scale"]);
    }

    #[test]
    fn malformed_structures_are_errors() {
        for bad in ["", "[]", "[1]", "[1, 2]", r#"[1, {"type": 3, "children_spec": []}]"#] {
            assert!(output_names(bad, &LIMITS).is_err(), "{bad}");
        }
    }
}
