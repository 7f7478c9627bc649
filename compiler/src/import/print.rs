//! The text form of a source program: one line per input, call and output, with types, module path and Python line. For reading only.

use super::program::{Arg, InputSpec, Node, OutputSpec, Program, ProgramGraph, SymArg};
use std::fmt::Display;

/// The text form.
pub fn print(program: &Program) -> String {
    let mut out = format!("program {} (torch {})\n", program.name, program.torch_version);
    let graph = &program.graph;
    let mut names = program.input_names.iter();
    for (role, arg) in program.inputs.iter().zip(&graph.inputs) {
        let value = arg_text(arg);
        let line = match role {
            InputSpec::Weight { name, buffer: false, .. } => format!("{value} = weight {name:?}"),
            InputSpec::Weight { name, buffer: true, .. } => format!("{value} = buffer {name:?}"),
            InputSpec::User(_) => format!("{value} = input {:?}", names.next().map_or("", String::as_str)),
            InputSpec::Constant { name, value } => format!("constant {name:?} = {}", arg_text(value)),
            InputSpec::Opaque(name) => format!("opaque {name:?}"),
        };
        out += &format!("  {line}{}\n", type_text(graph, std::slice::from_ref(arg)));
    }
    print_nodes(&mut out, graph, "  ");
    let mut names = program.output_names.iter();
    for role in &program.outputs {
        let line = match role {
            OutputSpec::User(arg) => {
                format!("output {:?} {}", names.next().map_or("", String::as_str), arg_text(arg))
            }
            OutputSpec::BufferMutation(value, name) => format!("buffer {name:?} becomes %{value}"),
            OutputSpec::InputMutation(value, name) => format!("input {name:?} becomes %{value}"),
            OutputSpec::Other(what) => format!("other {what}"),
        };
        out += &format!("  {line}\n");
    }
    out
}

fn print_nodes(out: &mut String, graph: &ProgramGraph, indent: &str) {
    for node in &graph.nodes {
        *out += &format!("{indent}{}\n", node_text(graph, node));
        for argument in &node.inputs {
            if let Arg::Graph(sub) = &argument.arg {
                *out += &format!("{indent}  graph {}({}) {{\n", sub.name, list(&sub.graph.inputs, arg_text));
                print_nodes(out, &sub.graph, &format!("{indent}    "));
                *out += &format!("{indent}    return {}\n{indent}  }}\n", list(&sub.graph.outputs, arg_text));
            }
        }
    }
}

fn node_text(graph: &ProgramGraph, node: &Node) -> String {
    let arguments = list(&node.inputs, |a| match a.name.as_str() {
        "" => arg_text(&a.arg),
        name => format!("{name}={}", arg_text(&a.arg)),
    });
    let results = list(&node.outputs, arg_text);
    let assign = if results.is_empty() { String::new() } else { format!("{results} = ") };
    let origin = format!("{} {}", node.module, node.line);
    let origin = if origin.trim().is_empty() { String::new() } else { format!("  ; {}", origin.trim()) };
    format!("{assign}{}({arguments}){}{origin}", node.target, type_text(graph, &node.outputs))
}

/// ` : f32[2, 5], …` of values that are tensors.
fn type_text(graph: &ProgramGraph, values: &[Arg]) -> String {
    let names = values.iter().flat_map(|value| match value {
        Arg::Tensor(name) => vec![name],
        Arg::Tensors(names) => names.iter().collect(),
        _ => vec![],
    });
    let types: Vec<String> = names
        .filter_map(|name| graph.tensors.get(name))
        .map(|meta| format!("{}[{}]", meta.dtype, list(&meta.sizes, ToString::to_string)))
        .collect();
    if types.is_empty() { String::new() } else { format!(" : {}", types.join(", ")) }
}

fn arg_text(arg: &Arg) -> String {
    let value = |name: &String| format!("%{name}");
    let gap = |name: &Option<String>| name.as_ref().map_or_else(|| "None".to_string(), value);
    match arg {
        Arg::None => "None".to_string(),
        Arg::Tensor(name) => value(name),
        Arg::Tensors(names) => format!("[{}]", list(names, value)),
        Arg::OptionalTensors(names) => format!("[{}]", list(names, gap)),
        Arg::NestedTensors(lists) => format!("[{}]", list(lists, |names| format!("[{}]", list(names, value)))),
        Arg::Int(v) => v.to_string(),
        Arg::Ints(v) => format!("{v:?}"),
        Arg::IntLists(v) => format!("{v:?}"),
        Arg::Float(v) => format!("{v:?}"),
        Arg::Floats(v) => format!("{v:?}"),
        Arg::Bool(v) => v.to_string(),
        Arg::Bools(v) => format!("{v:?}"),
        Arg::Complex(re, im) => format!("{re:?}+{im:?}j"),
        Arg::Str(v) => format!("{v:?}"),
        Arg::Strs(v) => format!("{v:?}"),
        Arg::SymInt(v) => symbolic(v),
        Arg::SymInts(v) => format!("[{}]", list(v, symbolic)),
        Arg::SymFloat(v) => symbolic(v),
        Arg::SymFloats(v) => format!("[{}]", list(v, symbolic)),
        Arg::SymBool(v) => symbolic(v),
        Arg::SymBools(v) => format!("[{}]", list(v, symbolic)),
        Arg::ScalarType(v) => v.to_string(),
        Arg::MemoryFormat(v) => format!("memory_format {v}"),
        Arg::Layout(v) => format!("layout {v}"),
        Arg::Device(v) => format!("device {v}"),
        Arg::Graph(sub) => sub.name.clone(),
        Arg::Operator(v) => v.clone(),
        Arg::StrMap(map) => {
            let pairs: Vec<String> = map.iter().map(|(k, v)| format!("{k:?}: {}", arg_text(v))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Arg::CustomObj(v) => format!("object {v}"),
    }
}

fn symbolic<T: Display>(arg: &SymArg<T>) -> String {
    match arg {
        SymArg::Value(value) => value.to_string(),
        SymArg::Name(name) => format!("%{name}"),
    }
}

fn list<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}
