//! Import of real archives: against what Python found in them, and against each other.

#[path = "import/archives.rs"]
#[expect(dead_code, reason = "the table of hostile files uses the rest")]
mod archives;
#[path = "import/hostile.rs"]
mod hostile;

use archives::{fixture, read, text};
use jvc::import::program::{Arg, InputSpec, OutputSpec, ScalarType, SymArg};
use jvc::import::{self, Program};
use jvc::ir::{Dim, Range};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const VERSIONS: [&str; 6] = ["2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.11.0"];

fn small(version: &str) -> Program {
    read(&format!("small_{version}.pt2"))
}

fn digest(version: &str) -> Value {
    serde_json::from_str(&text(&format!("small_{version}.json"))).expect("a digest is JSON")
}

/// An argument as the export format writes it (2.6 and later).
fn arg_json(arg: &Arg) -> Value {
    let name = |n: &String| json!({"name": n});
    let sym = |a: &SymArg<i64>| match a {
        SymArg::Name(n) => json!({"as_name": n}),
        SymArg::Value(v) => json!({"as_int": v}),
    };
    match arg {
        Arg::None => json!({"as_none": true}),
        Arg::Tensor(n) => json!({"as_tensor": name(n)}),
        Arg::Tensors(v) => json!({"as_tensors": v.iter().map(name).collect::<Vec<_>>()}),
        Arg::Int(v) => json!({"as_int": v}),
        Arg::Ints(v) => json!({"as_ints": v}),
        Arg::Float(v) => json!({"as_float": v}),
        Arg::Bool(v) => json!({"as_bool": v}),
        Arg::Str(v) => json!({"as_string": v}),
        Arg::SymInt(a) => json!({"as_sym_int": sym(a)}),
        Arg::SymInts(v) => json!({"as_sym_ints": v.iter().map(sym).collect::<Vec<_>>()}),
        Arg::MemoryFormat(v) => json!({"as_memory_format": v}),
        Arg::Layout(v) => json!({"as_layout": v}),
        Arg::Device(d) => json!({"as_device": {"type": d}}),
        Arg::ScalarType(t) => {
            json!({"as_scalar_type": (1..33).find(|&c| ScalarType::from_code(c) == Some(*t)).expect("a code")})
        }
        other => panic!("{other:?} is in none of these programs"),
    }
}

/// The digest's argument in the same form.
fn normal(mut arg: Value) -> Value {
    if arg.get("as_none").is_some() {
        return json!({"as_none": true});
    }
    if let Some(device) = arg.get_mut("as_device").and_then(Value::as_object_mut) {
        device.remove("index");
    }
    arg
}

#[test]
fn nodes_and_arguments_are_those_that_python_reads() {
    for version in VERSIONS {
        let (program, digest) = (small(version), digest(version));
        let expected = digest["nodes"].as_array().expect("a list");
        assert_eq!(program.graph.nodes.len(), expected.len(), "{version}");
        for (node, expect) in program.graph.nodes.iter().zip(expected) {
            let target = expect[0].as_str().expect("a target");
            assert_eq!(node.target, target.strip_prefix("torch.ops.").unwrap_or(target), "{version}");
            let args: Vec<Value> = node.inputs.iter().map(|a| json!([a.name, arg_json(&a.arg)])).collect();
            let of = |a: &Value| json!([a["name"], normal(a["arg"].clone())]);
            let expect_args: Vec<Value> = expect[1].as_array().expect("a list").iter().map(of).collect();
            assert_eq!(args, expect_args, "{version} {target}");
            let outputs: Vec<Value> = node.outputs.iter().map(arg_json).collect();
            assert_eq!(json!(outputs), expect[2], "{version} {target}");
        }
    }
}

#[test]
fn signatures_are_those_that_python_reads() {
    for version in VERSIONS {
        let (program, digest) = (small(version), digest(version));
        let roles = digest["signature"]["input_specs"].as_array().expect("a list");
        for (input, role) in program.inputs.iter().zip(roles) {
            let (kind, body) = role.as_object().expect("an object").iter().next().expect("one key");
            match input {
                InputSpec::Weight { arg, name, buffer } => {
                    assert_eq!(body["arg"]["name"], arg.as_str(), "{version}");
                    assert_eq!(body[format!("{kind}_name")], name.as_str(), "{version}");
                    assert_eq!(*buffer, kind == "buffer", "{version}");
                }
                InputSpec::User(arg) => assert_eq!(body["arg"], arg_json(arg), "{version}"),
                other => panic!("{other:?} is not in these programs"),
            }
        }
        assert_eq!(program.inputs.len(), roles.len(), "{version}");
        let mutations = program.outputs.iter().filter(|o| matches!(o, OutputSpec::BufferMutation(..))).count();
        assert_eq!(mutations, usize::from(program.functional), "only functional programs list mutations: {version}");
        assert_eq!(program.output_names, ["y", "z", "w", "e", "n"], "{version}");
        assert_eq!(program.input_names, ["x"], "{version}");
        assert_eq!(program.functional, version == "2.5.1");
        assert!(program.torch_version.starts_with(version), "{}", program.torch_version);
        assert_eq!(program.warnings, Vec::<String>::new(), "{version}");
    }
}

#[test]
fn symbols_and_their_bounds_are_read_in_both_notations() {
    for version in VERSIONS {
        let program = small(version);
        let (symbol, range) = program.ranges.iter().next().expect("a symbol");
        assert_eq!((program.ranges.len(), *range), (1, Range { min: 2, max: 64 }), "{version}");
        assert_eq!(program.graph.tensors["x"].sizes, [Dim::symbol(symbol), Dim::from(4)], "{version}");
        let doubled = program.graph.sym_ints.values().filter(|d| **d == &Dim::symbol(symbol) * &Dim::from(2)).count();
        assert_eq!(doubled, 1, "the program returns twice its batch size: {version}");
    }
}

#[test]
fn weights_have_the_same_elements_in_every_version() {
    let newest = small("2.11.0");
    assert_eq!(newest.weights["t"].strides, [1, 4], "a transposed parameter stays a view");
    assert_eq!(newest.weights["e"].strides, [0, 1], "an expanded buffer stays a view");
    for version in VERSIONS {
        let program = small(version);
        for (name, view) in &newest.weights {
            let Some(other) = program.weights.get(name) else { panic!("{version} has no {name}") };
            assert_eq!((other.dtype, &other.sizes), (view.dtype, &view.sizes), "{version} {name}");
            assert_eq!(other.contiguous(), view.contiguous(), "{version} {name}");
        }
    }
}

#[test]
fn tied_weights_share_their_storage() {
    for version in VERSIONS {
        let program = small(version);
        let start = |name: &str| program.weights[name].storage.as_ref().expect("a payload").bytes().as_ptr();
        assert_eq!(start("l.weight"), start("l2.weight"), "{version}");
    }
}

#[test]
fn views_of_one_storage_keep_offset_and_strides() {
    let program = read("view_weights.pt2");
    let view = |name: &str| &program.weights[name];
    let shape = |name: &str| (view(name).sizes.clone(), view(name).strides.clone(), view(name).offset);
    assert_eq!(shape("a"), (vec![3, 8], vec![8, 1], 0));
    assert_eq!(shape("b"), (vec![3, 8], vec![8, 1], 24));
    assert_eq!(shape("sl"), (vec![4, 3], vec![6, 2], 1));
    let floats = |name: &str| -> Vec<f32> {
        let bytes = view(name).contiguous().expect("a payload");
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    };
    let whole = view("sl").storage.as_ref().expect("a payload").bytes();
    let element = |i: usize| f32::from_le_bytes(whole[4 * i..4 * i + 4].try_into().expect("four bytes"));
    let expect: Vec<f32> = (0..12).map(|i| element(1 + 6 * (i / 3) + 2 * (i % 3))).collect();
    assert_eq!(floats("sl"), expect);
    let row = floats("e");
    assert_eq!(row[..4], row[4..8], "an expanded tensor repeats its row");
}

#[test]
fn every_element_type_is_read_and_empty_tensors_have_no_bytes() {
    let program = read("dtypes.pt2");
    use ScalarType::*;
    let expect: BTreeMap<&str, (ScalarType, u64)> = [
        ("f16", F16),
        ("bf16", BF16),
        ("f64", F64),
        ("i8", I8),
        ("u8", U8),
        ("i16", I16),
        ("i32", I32),
        ("i64", I64),
        ("b", Bool),
        ("c64", C64),
        ("f8", F8E4M3Fn),
    ]
    .into_iter()
    .map(|(n, t)| (n, (t, t.size_bytes())))
    .collect();
    for (name, (dtype, size)) in expect {
        let view = &program.weights[name];
        assert_eq!(view.dtype, dtype, "{name}");
        assert_eq!(view.contiguous().expect("a payload").len() as u64, size * view.n_elems() as u64, "{name}");
    }
    let empty = &program.weights["empty"];
    assert!(empty.sizes.contains(&0), "{:?}", empty.sizes);
    assert_eq!(empty.contiguous(), Some(vec![]));
}

#[test]
fn constants_given_at_export_keep_their_place_among_the_inputs() {
    let program = read("pytree_io.pt2");
    assert_eq!(program.input_names, ["x.a", "x.b.0", "opts.0", "opts.1", "scale", "flag", "name"]);
    assert_eq!(program.output_names, ["y", "same", "none", "passthrough", "n", "pair.0", "pair.1.0"]);
    let constants: Vec<&Arg> = program
        .inputs
        .iter()
        .filter_map(|i| match i {
            InputSpec::Constant { value, .. } => Some(value),
            _ => None,
        })
        .collect();
    assert_eq!(constants, [&Arg::None, &Arg::Float(2.5), &Arg::Bool(true), &Arg::None]);
    assert_eq!(program.outputs[0], program.outputs[1], "an output may be returned twice");
    assert_eq!(program.outputs[4], OutputSpec::User(Arg::Int(3)));
}

#[test]
fn bounds_on_expressions_reach_their_symbols() {
    let program = read("sym_shapes.pt2");
    let range = |s: &str| program.ranges[s];
    assert_eq!(range("s18"), Range { min: 2, max: 32 });
    assert_eq!(range("s0"), Range { min: 8, max: 128 });
    let height = &program.graph.tensors["x"].sizes[2];
    assert_eq!(*height, &Dim::symbol("s18") * &Dim::from(4));
}

#[test]
fn mutations_and_sub_graphs_are_kept() {
    let inputs = read("input_mutation.core.pt2");
    assert!(inputs.outputs.iter().any(|o| matches!(o, OutputSpec::InputMutation(_, name) if name == "x")));
    let buffers = read("buffer_mutation.core.pt2");
    let names: Vec<&str> = buffers
        .outputs
        .iter()
        .filter_map(|o| if let OutputSpec::BufferMutation(_, name) = o { Some(name.as_str()) } else { None })
        .collect();
    assert_eq!(names, ["kc", "vc", "steps"]);
    let scan = read("scan.pt2");
    let inner = scan.graph.nodes.iter().flat_map(|n| &n.inputs).find_map(|a| match &a.arg {
        Arg::Graph(g) => Some(g),
        _ => None,
    });
    let inner = inner.expect("scan has a body");
    assert!(!inner.graph.nodes.is_empty() && !inner.graph.inputs.is_empty());
}

#[test]
fn bare_graphs_have_weights_without_bytes_until_they_are_made_up() {
    let archive = archives::Entries::of("small_2.11.0.pt2");
    let json = archive.get("models/model.json");
    for (name, bytes) in [("small.model.json", json.to_vec()), ("small.model.json.gz", archives::gzip(json))] {
        let mut programs = archives::read_bytes(name, bytes).expect("a program");
        assert_eq!(programs[0].name, "small");
        assert_eq!(programs[0].weights.len(), 15);
        assert!(programs[0].weights.values().all(|w| w.storage.is_none()));
        import::fill_random(&mut programs, 7).expect("a few bytes");
        let sizes = |p: &Program| p.weights.values().map(|w| w.contiguous().map(|b| b.len())).collect::<Vec<_>>();
        assert_eq!(sizes(&programs[0]), sizes(&small("2.11.0")), "as many bytes as the archive has");
    }
}

#[test]
fn a_checkpoint_replaces_weights_of_the_same_type_only() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let path = dir.path().join("w.safetensors");
    let write = |name: &str, shape: Vec<usize>| {
        let bytes: Vec<u8> = (0..shape.iter().product::<usize>()).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, &bytes).expect("consistent");
        std::fs::write(&path, safetensors::serialize([(name, view)], None).expect("serializable")).expect("writable");
    };
    let mut programs = vec![small("2.11.0")];
    write("t", vec![4, 5]);
    assert_eq!(import::merge_weights(&mut programs, &path).expect("fits"), Vec::<String>::new());
    let bytes = programs[0].weights["t"].contiguous().expect("a payload");
    assert_eq!(bytes[4..8], 1f32.to_le_bytes(), "row-major, whatever the archive's strides were");
    write("t", vec![5, 4]);
    assert!(import::merge_weights(&mut programs, &path).expect_err("another shape").to_string().contains("`t`"));
    write("nobody", vec![1]);
    assert_eq!(import::merge_weights(&mut programs, &path).expect("nothing to do"), ["nobody"]);
}

#[test]
fn files_are_mapped_not_read() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let path = dir.path().join("small.pt2");
    std::fs::write(&path, fixture("small_2.11.0.pt2")).expect("writable");
    let programs = import::read(&path).expect("a program");
    assert_eq!(programs[0].weights["t"].contiguous(), small("2.11.0").weights["t"].contiguous());
    assert!(import::read(&dir.path().join("gone.pt2")).expect_err("no file").to_string().contains("gone.pt2"));
}
