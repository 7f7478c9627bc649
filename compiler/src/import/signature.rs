//! The signature part of the JSON: roles of the graph's inputs and outputs, their names, and the bounds of the symbols.

use super::error::ImportError;
use super::graph::Reader;
use super::json::Json;
use super::program::{Arg, InputSpec, OutputSpec, ProgramGraph, SymArg};
use super::pytree;
use crate::ir::{Dim, Range, Ranges};

type Read<T> = Result<T, ImportError>;

/// Roles of the graph's inputs.
pub(super) fn inputs(reader: &mut Reader<'_>, signature: &Json<'_>, graph: &ProgramGraph) -> Read<Vec<InputSpec>> {
    let at = "signature.input_specs";
    let specs = signature.need("input_specs", at)?.list(at)?;
    if specs.len() != graph.inputs.len() {
        return Err(ImportError::format(at, format!("{} roles for {} inputs", specs.len(), graph.inputs.len())));
    }
    specs.iter().zip(&graph.inputs).map(|(spec, arg)| input(reader, spec, arg, at)).collect()
}

fn input(reader: &mut Reader<'_>, spec: &Json<'_>, graph_arg: &Arg, at: &str) -> Read<InputSpec> {
    let (role, v) = spec.union(at)?;
    let weight = |reader: &Reader<'_>, key: &str, buffer: bool| {
        let arg = reader.name(v.need("arg", at)?.need("name", at)?.str(at)?)?;
        same_input(&arg, graph_arg, at)?;
        Ok(InputSpec::Weight { arg, name: reader.name(v.need(key, at)?.str(at)?)?, buffer })
    };
    match role {
        "parameter" => weight(reader, "parameter_name", false),
        "buffer" => weight(reader, "buffer_name", true),
        "tensor_constant" => weight(reader, "tensor_constant_name", false),
        "user_input" => {
            let arg = reader.arg(v.need("arg", at)?, at)?;
            if &arg != graph_arg {
                return Err(ImportError::format(at, format!("{arg:?} stands where the graph has {graph_arg:?}")));
            }
            match arg {
                Arg::Tensor(_) | Arg::SymInt(SymArg::Name(_)) => Ok(InputSpec::User(arg)),
                value => Ok(InputSpec::Constant { name: String::new(), value }),
            }
        }
        "constant_input" => Ok(InputSpec::Constant {
            name: reader.name(v.need("name", at)?.str(at)?)?,
            value: reader.arg(v.need("value", at)?, at)?,
        }),
        "custom_obj" | "token" => Ok(InputSpec::Opaque(reader.name(v.need("arg", at)?.need("name", at)?.str(at)?)?)),
        other => Err(ImportError::format(at, format!("input role `{other}` is not known"))),
    }
}

fn same_input(name: &str, graph_arg: &Arg, at: &str) -> Read<()> {
    match graph_arg {
        Arg::Tensor(n) if n == name => Ok(()),
        other => Err(ImportError::format(at, format!("`{name}` stands where the graph has {other:?}"))),
    }
}

/// Roles of the graph's outputs.
pub(super) fn outputs(reader: &mut Reader<'_>, signature: &Json<'_>, graph: &ProgramGraph) -> Read<Vec<OutputSpec>> {
    let at = "signature.output_specs";
    let specs = signature.need("output_specs", at)?.list(at)?;
    if specs.len() != graph.outputs.len() {
        return Err(ImportError::format(at, format!("{} roles for {} outputs", specs.len(), graph.outputs.len())));
    }
    specs.iter().zip(&graph.outputs).map(|(spec, arg)| output(reader, spec, arg, at)).collect()
}

fn output(reader: &mut Reader<'_>, spec: &Json<'_>, graph_arg: &Arg, at: &str) -> Read<OutputSpec> {
    let (role, v) = spec.union(at)?;
    let value = |reader: &Reader<'_>| reader.name(v.need("arg", at)?.need("name", at)?.str(at)?);
    let named = |reader: &Reader<'_>, key: &str| reader.name(v.need(key, at)?.str(at)?);
    match role {
        "user_output" => {
            let arg = reader.arg(v.need("arg", at)?, at)?;
            if &arg != graph_arg {
                return Err(ImportError::format(at, format!("{arg:?} stands where the graph has {graph_arg:?}")));
            }
            Ok(OutputSpec::User(arg))
        }
        "buffer_mutation" => Ok(OutputSpec::BufferMutation(value(reader)?, named(reader, "buffer_name")?)),
        "parameter_mutation" => Ok(OutputSpec::BufferMutation(value(reader)?, named(reader, "parameter_name")?)),
        "user_input_mutation" => Ok(OutputSpec::InputMutation(value(reader)?, named(reader, "user_input_name")?)),
        "loss_output" | "gradient_to_parameter" | "gradient_to_user_input" | "token" => {
            Ok(OutputSpec::Other(role.to_string()))
        }
        other => Err(ImportError::format(at, format!("output role `{other}` is not known"))),
    }
}

/// Names of the user's inputs and outputs, from the pytrees; from the graph where the file has none that fit.
pub(super) fn names(
    reader: &mut Reader<'_>,
    module: &Json<'_>,
    inputs: &[InputSpec],
    outputs: &[OutputSpec],
) -> Read<(Vec<String>, Vec<String>)> {
    let root = module.get("module_call_graph").and_then(|g| g.list("").ok()?.first()).and_then(|e| e.get("signature"));
    let text = |key: &str| root.and_then(|s| s.get(key)).and_then(|v| v.str("").ok());
    let parameters: Vec<&str> = root
        .and_then(|s| s.get("forward_arg_names"))
        .and_then(|v| v.list("").ok())
        .map(|list| list.iter().filter_map(|v| v.str("").ok()).collect())
        .unwrap_or_default();

    let from_graph = |spec: &InputSpec| match spec {
        InputSpec::User(Arg::Tensor(n) | Arg::SymInt(SymArg::Name(n))) => Some(n.clone()),
        InputSpec::User(_) => Some("input".to_string()),
        InputSpec::Constant { name, .. } => Some(name.clone()),
        InputSpec::Weight { .. } | InputSpec::Opaque(_) => None,
    };
    let mut input_names: Vec<String> = inputs.iter().filter_map(from_graph).collect();
    if let Some(spec) = text("in_spec")
        && !parameters.is_empty()
    {
        let named = pytree::input_names(spec, &parameters, reader.limits);
        adopt(reader, &mut input_names, named, "inputs")?;
    }
    let n_outputs = outputs.iter().filter(|o| matches!(o, OutputSpec::User(_))).count();
    let mut output_names: Vec<String> = (0..n_outputs).map(|i| format!("output.{i}")).collect();
    if let Some(spec) = text("out_spec") {
        let named = pytree::output_names(spec, reader.limits);
        adopt(reader, &mut output_names, named, "outputs")?;
    }
    Ok((input_names, output_names))
}

/// Takes the pytree's names if there are as many; a structure that cannot be read only costs the names.
fn adopt(reader: &mut Reader<'_>, names: &mut Vec<String>, tree: Read<Vec<String>>, what: &str) -> Read<()> {
    match tree {
        Ok(tree) if tree.len() == names.len() => *names = tree,
        Ok(tree) => {
            let note =
                format!("the pytree has {} {what}, the signature {}: names are the graph's", tree.len(), names.len());
            reader.warnings.insert(note);
        }
        Err(limit @ ImportError::Limit { .. }) => return Err(limit),
        Err(error) => {
            reader.warnings.insert(format!("names of {what} are the graph's: {error}"));
        }
    }
    Ok(())
}

/// Bounds of all symbols: those that the file gives, also through expressions of one symbol (`4*s18`), else what is known of sizes.
pub(super) fn ranges(reader: &mut Reader<'_>, constraints: Option<&Json<'_>>) -> Read<Ranges> {
    let at = "range_constraints";
    let mut given: Vec<(Dim, Range)> = vec![];
    for (key, bounds) in constraints.map_or(Ok(&[][..]), |c| c.map(at))? {
        let bound = |name: &str, open: i64| match bounds.get(name) {
            None | Some(Json::Null) => Ok(open),
            Some(v) => v.int(at),
        };
        let range = Range { min: bound("min_val", i64::MIN)?, max: bound("max_val", i64::MAX)? };
        given.push((reader.expression(key)?, range));
    }
    let mut out = Ranges::new();
    for symbol in reader.symbols() {
        let natural = match (reader.positive.contains(&symbol), reader.sizes.contains(&symbol)) {
            (true, _) => 1,
            (false, true) => 0,
            (false, false) => i64::MIN,
        };
        out.insert(symbol, Range { min: natural, max: i64::MAX });
    }
    for (dim, range) in given {
        constrain(reader, &mut out, &dim, range)?;
    }
    Ok(out)
}

/// Intersects a symbol's range with what `min ≤ factor·symbol + rest ≤ max` implies.
fn constrain(reader: &mut Reader<'_>, ranges: &mut Ranges, dim: &Dim, range: Range) -> Read<()> {
    let Some((symbol, factor, rest)) = linear(dim) else {
        if dim.as_const().is_none() {
            reader.warnings.insert(format!("the bounds of `{dim}` are not used"));
        }
        return Ok(());
    };
    let slot = ranges.entry(symbol.clone()).or_insert(Range { min: i64::MIN, max: i64::MAX });
    if range.min != i64::MIN {
        let least = range.min.saturating_sub(rest);
        slot.min = slot.min.max(least.div_euclid(factor) + i64::from(least.rem_euclid(factor) != 0));
    }
    if range.max != i64::MAX {
        slot.max = slot.max.min(range.max.saturating_sub(rest).div_euclid(factor));
    }
    if slot.min > slot.max {
        let why = format!("leave no value for the symbol {symbol}: {} to {}", slot.min, slot.max);
        return Err(ImportError::format("range_constraints", why));
    }
    Ok(())
}

/// `factor·symbol + rest` with a positive factor.
fn linear(dim: &Dim) -> Option<(String, i64, i64)> {
    let mut factor = None;
    let mut rest = 0;
    for (atoms, c) in dim.terms() {
        match atoms {
            [] => rest = c,
            [crate::ir::dim::Atom::Symbol(s)] if factor.is_none() && c > 0 => factor = Some((s.clone(), c)),
            _ => return None,
        }
    }
    factor.map(|(symbol, factor)| (symbol, factor, rest))
}
